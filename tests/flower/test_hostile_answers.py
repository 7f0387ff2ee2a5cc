"""Malicious, broken and lost answers: only their sender is affected."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException
from safetensors.torch import load_file

from fedgh.core.records import Problem
from fedgh.errors import RunError
from fedgh.flower import (
    client,
    messages,
)
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.local import FIRST_NODE, LocalFederation, UnreliableGrid
from tests.support.tiny import quick

pytestmark = pytest.mark.usefixtures("impatient")


Fields = dict[str, Any]
NOISE = "\x1b[2Jround 2 is done\n, accuracy 99.9% " + "x" * 400
HOSTILE: dict[str, tuple[Callable[[Fields], Fields], str]] = {
    "another's name": (lambda fields: {**fields, "client_id": 2}, "an answer of client 2 in round"),
    "another round": (lambda fields: {**fields, "round": 77}, "an answer of client 1 in round 77"),
    "nothing": (lambda fields: {}, "client_id: Field required"),
    "infinite scores": (
        lambda fields: {**fields, "metrics": {"train_loss": float("inf")}},
        "metrics.train_loss: Input should be",
    ),
    "sums that overflow": (
        lambda fields: {**fields, "metrics": {"train_loss": 1.7e308}},
        "metrics.train_loss: Input should be less",
    ),
    "wonderful scores": (
        lambda fields: {**fields, "metrics": {"accuracy": 7.0, "validation_accuracy": 1.0}},
        "an impossible value of accuracy",
    ),
    "many scores": (
        lambda fields: {**fields, "metrics": {f"m{chr(97 + k)}": 0.0 for k in range(20)}},
        "metrics: Dictionary should have at most 16 items",
    ),
    "odd names": (
        lambda fields: {**fields, "metrics": {"../" + NOISE: 1.0}},
        r"metrics\..*2Jround",
    ),
    "negative time": (
        lambda fields: {**fields, "seconds": {"train": -5.0}},
        "seconds.train: Input should be greater",
    ),
    "negative counts": (
        lambda fields: {**fields, "num_examples": -1},
        "num_examples: Input should be",
    ),
    "wrong types": (
        lambda fields: {**fields, "round": "1"},
        "round: Input should be a valid integer",
    ),
    "long message": (
        lambda fields: {**fields, "error": "x" * 10_000},
        "error: String should have at",
    ),
    "extra fields": (lambda fields: {**fields, "extra": 1}, "extra: Unexpected keyword argument"),
}


def app_with_malicious_client(change: Callable[[Message, Message], Message]) -> ClientApp:
    """Return an app in which client 1 replaces its honest answer by `change` of it."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        honest = client.app(message, context)
        return change(message, honest) if context.node_config["client"] == 1 else honest

    return app


def parts(message: Message) -> tuple[Fields, bytes]:
    """Return the JSON fields and the payload of an answer."""
    fields, payload = messages.unpack(message.content)
    assert payload is not None
    return json.loads(fields), payload


TWO_ROUNDS = ["federation.rounds=2", "run.deadline=20"]


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in which client 1 fails in all rounds."""
    out = tmp_path_factory.mktemp("without") / "run"
    absent = {(1, 1), (1, 2)}
    return loop.run(quick(*TWO_ROUNDS), out, make_engine=with_absent(absent, "away"))


def assert_only_its_sender_fails(
    tmp_path: Path, straight: RunFolder, app: ClientApp, reason: str
) -> None:
    run = LocalFederation(tmp_path / "federation", quick(*TWO_ROUNDS), [app]).run()
    for record, expected in zip(run.records(), straight.records(), strict=True):
        (bad,) = record.failed + record.rejected
        assert bad.client == 1
        assert re.search(reason, bad.reason)
        assert len(bad.reason) <= 500
        assert bad.reason.isprintable()
        assert record.accuracies[0] == expected.accuracies[0]
        assert record.train_loss == expected.train_loss
    header = load_file(run.checkpoint / "server.safetensors")
    for name, tensor in load_file(straight.checkpoint / "server.safetensors").items():
        if name.startswith("server."):
            assert header[name].equal(tensor), (
                "the server's state depends on the other clients only"
            )


def test_reported_durations_are_limited_to_the_deadline(tmp_path: Path) -> None:
    def report_long_durations(message: Message, honest: Message) -> Message:
        fields, payload = parts(honest)
        fields["seconds"] = dict.fromkeys(fields["seconds"], 1e9)
        return Message(messages.pack(json.dumps(fields).encode(), payload), reply_to=message)

    for record in (
        LocalFederation(
            tmp_path, quick(*TWO_ROUNDS), [app_with_malicious_client(report_long_durations)]
        )
        .run()
        .records()
    ):
        assert record.failed == record.rejected == []
        assert record.seconds["train"] <= 5 * 120, (
            "the first round has two minutes for each of five clients"
        )


@pytest.mark.parametrize("what", HOSTILE)
def test_a_malicious_answer_affects_only_its_sender(
    what: str, without_client_1: RunFolder, tmp_path: Path
) -> None:
    mutate, reason = HOSTILE[what]

    def change(message: Message, honest: Message) -> Message:
        fields, payload = parts(honest)
        content = messages.pack(json.dumps(mutate(fields)).encode(), payload)
        return Message(content, reply_to=message)

    assert_only_its_sender_fails(
        tmp_path, without_client_1, app_with_malicious_client(change), reason
    )


def _no_content(message: Message, honest: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def _no_json(message: Message, honest: Message) -> Message:
    return Message(messages.pack(b"\xff\xfe", None), reply_to=message)


def _no_safetensors(message: Message, honest: Message) -> Message:
    fields, _ = parts(honest)
    return Message(messages.pack(json.dumps(fields).encode(), b"x"), reply_to=message)


def _neither_upload_nor_reason(message: Message, honest: Message) -> Message:
    fields, _ = parts(honest)
    return Message(messages.pack(json.dumps(fields).encode(), None), reply_to=message)


def _to_another_message(message: Message, honest: Message) -> Message:
    honest.metadata.__dict__["_reply_to_message_id"] = "another message"
    fields, payload = parts(honest)
    honest.content = messages.pack(json.dumps({**fields, "client_id": 2}).encode(), payload)
    return honest


def _noise(message: Message, honest: Message) -> Message:
    fields, _ = parts(honest)
    return Message(
        messages.pack(json.dumps({**fields, "error": NOISE}).encode(), None), reply_to=message
    )


def _gone(message: Message, honest: Message) -> Message:
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, NOISE), reply_to=message)


def _raises(message: Message, honest: Message) -> Message:
    raise ValueError("out of order")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_no_content, "not a message of fedgh"),
        (_no_json, "not a readable message"),
        (_no_safetensors, "not a readable message"),
        (_neither_upload_nor_reason, "neither an upload nor an error"),
        (_to_another_message, "an answer of client 2"),
        (_noise, r"^\[2Jround 2 is done , acc"),
        (_gone, r"Flower error 5: \[2Jround"),
        (_raises, "Flower error 2: out of order"),
    ],
)
def test_a_broken_answer_affects_only_its_sender(
    change: Callable[[Message, Message], Message],
    reason: str,
    without_client_1: RunFolder,
    tmp_path: Path,
) -> None:
    assert_only_its_sender_fails(
        tmp_path, without_client_1, app_with_malicious_client(change), reason
    )


def test_bytes_that_are_no_message_affect_only_their_sender(
    without_client_1: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower delivers each reply once: an unreadable one must not make others unavailable."""
    reply = UnreliableGrid._reply

    def damaged(self: UnreliableGrid, name: str) -> Message | None:
        found = reply(self, name)
        if found is not None and found.metadata.src_node_id == FIRST_NODE + 1:
            raise ValueError("these bytes are no message")
        return found

    monkeypatch.setattr(UnreliableGrid, "_reply", damaged)
    assert_only_its_sender_fails(
        tmp_path, without_client_1, client.app, r"not a readable message \(ValueError\)"
    )


@pytest.mark.parametrize("times", [1, 2**62])
def test_an_error_of_the_superlink_is_not_counted_as_a_strike(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server polls again until the deadline."""
    reply, failures_left = UnreliableGrid._reply, times

    def failing_reply(self: UnreliableGrid, name: str) -> Message | None:
        nonlocal failures_left
        if self.waiting.get(name) == FIRST_NODE + 1:
            failures_left -= 1
            if failures_left >= 0:
                ask = httpx.Request("POST", "http://superlink")
                answer = httpx.Response(500, request=ask)
                raise httpx.HTTPStatusError("500", request=ask, response=answer)
        return reply(self, name)

    monkeypatch.setattr(UnreliableGrid, "_reply", failing_reply)
    experiment = quick("federation.rounds=1", "run.strikes=1", "run.deadline=3")
    (record,) = LocalFederation(tmp_path / "federation", experiment).run().records()
    assert (record.rejected, record.excluded) == ([], [])
    reason = "no answer within 3 s; the SuperLink answered 500"
    assert record.failed == ([] if times == 1 else [Problem(client=1, reason=reason)])


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (httpx.ConnectError("gone"), "the SuperLink cannot be reached: gone"),
        (RunNotRunningException(), "Flower has stopped this run"),
    ],
)
def test_a_lost_superlink_ends_the_run(
    problem: Exception, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object) -> Message | None:
        raise problem

    monkeypatch.setattr(UnreliableGrid, "_reply", raising)
    with pytest.raises(RunError, match=error):
        LocalFederation(tmp_path / "federation", quick()).run()


def test_an_answer_without_all_metrics_is_accepted(tmp_path: Path) -> None:
    def change(message: Message, honest: Message) -> Message:
        fields, payload = parts(honest)
        content = messages.pack(
            json.dumps({**fields, "metrics": {"accuracy": 0.5}}).encode(), payload
        )
        return Message(content, reply_to=message)

    run = LocalFederation(
        tmp_path / "federation", quick("federation.rounds=2"), [app_with_malicious_client(change)]
    ).run()
    for record in run.records():
        assert record.failed == record.rejected == []
        assert record.accuracies[1] is None
