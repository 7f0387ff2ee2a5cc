"""Both apps with real messages, in one process: the same bits as everywhere, and every refusal."""

import fcntl
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException
from safetensors.torch import load_file
from torch import nn

from fedgh.core import wire
from fedgh.core.moments import Moments
from fedgh.core.types import Job, Payload, Reply, Task, part
from fedgh.errors import ConfigError, RunError
from fedgh.flower import (
    NodeConfig,
    Participant,
    client,
    client_app,
    engine,
    messages,
    participant,
)
from fedgh.flower.engine import Flower
from fedgh.flower.server import shared_settings
from fedgh.runs.folder import RunFolder
from fedgh.trained.forget import Forgotten, forget
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.local import FIRST_NODE, NETWORKS, House, Unreliable
from tests.support.runs import EVERYTHING, interrupted
from tests.support.tiny import numbers, quick, states


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process nobody is far away."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "GATHERING", 0.0)


def assert_same(house: House, run: RunFolder, straight: RunFolder) -> None:
    """Numbers, the server's state and every client's: to the bit."""
    assert numbers(run) == numbers(straight)
    server = states(run)["server.safetensors"]
    assert {**house.states(), "server.safetensors": server} == states(straight)


MEASURING = "fedgh.studies.convergence:Probed"  # a method with numbers of its own


@pytest.mark.parametrize(
    "method", ["fedgh", "fedproto", "fd", "fml", "fedkd", "lg_fedavg", MEASURING]
)
def test_the_grid_gives_the_same_bits_as_serial(method: str, tmp_path: Path) -> None:
    experiment = quick(*EVERYTHING, f"method.name={method}")
    straight = loop.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment, settings={"allow": f"{NETWORKS},{MEASURING}"})
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_so_do_the_methods_for_equal_networks(method: str, tmp_path: Path) -> None:
    experiment = quick("model.zoo=tests.support.tiny:mlp", f"method.name={method}")
    straight = loop.run(experiment, tmp_path / "serial")
    house = House(tmp_path / "house", experiment)
    assert_same(house, house.run(), straight)


@pytest.mark.parametrize(("after", "every"), [(1, 1), (5, 1), (4, 3), (7, 3)])
def test_a_server_that_is_started_again_repeats_and_loses_nothing(
    every: int, after: int, tmp_path: Path
) -> None:
    straight = loop.run(quick(*EVERYTHING), tmp_path / "serial")
    house = House(tmp_path / "house", quick(*EVERYTHING, f"run.checkpoint_every={every}"))
    house.grid.break_after = after
    with pytest.raises(KeyboardInterrupt):
        house.run()
    house.grid.break_after = 2**62
    house.grid._waiting.clear()  # a new SuperLink knows nothing of old messages
    assert_same(house, house.run(), straight)


def test_who_is_late_sits_a_round_out_and_goes_on_from_its_own_state(tmp_path: Path) -> None:
    """The late client has trained and kept a state, which nobody counts: it must not be used."""
    absent = {(1, 2), (3, 2), (1, 3)}
    experiment = quick("federation.rounds=4", "run.deadline=5")
    straight = loop.run(
        experiment,
        tmp_path / "serial",
        make_engine=with_absent(absent, "no answer within 5 s"),
    )
    assert [f["client"] for f in straight.records()[1]["failed"]] == [1, 3]
    house = House(tmp_path / "house", experiment)
    house.grid.lost = absent
    assert_same(house, house.run(), straight)


def test_who_is_not_connected_is_not_waited_for(tmp_path: Path) -> None:
    experiment = quick("run.deadline=5", "federation.rounds=3")
    house = House(tmp_path / "house", experiment)
    away = house.grid.nodes.pop(FIRST_NODE + 2)
    house.grid.nodes[1] = replace(away, public_key=b"a stranger's")
    run = house.run()
    assert [record["failed"] for record in run.records()] == [
        [{"client": 2, "reason": "not connected"}]
    ] * 3
    assert run.records()[-1]["accuracy_per_client"][2] is None
    assert sum(record["seconds"]["total"] for record in run.records()[1:]) < 60


def test_all_clients_failing_ends_the_run_with_a_reason(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick("run.deadline=1"))
    house.grid.nodes.clear()
    with pytest.raises(RunError, match="all 5 participants failed; client 0: not connected"):
        house.run()
    said = json.loads((house.path / "run" / "flower.json").read_text())
    assert "not connected" in said["error"]


def test_too_few_answers_end_the_run_before_the_round_counts(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick("run.quorum=0.8", "run.deadline=5"))
    house.grid.lost = {(0, 2), (1, 2)}
    with pytest.raises(RunError, match=r"round 2: 3 of 5 participants answered, run.quorum = 0.8"):
        house.run()
    house.grid.lost = set()
    straight = loop.run(quick(), tmp_path / "serial")
    assert_same(house, house.run(), straight)


def ask(house: House, **changes: Any) -> Reply:
    """Put a question to client 0, as the server of its last start would but for `changes`."""
    (named,) = (house.path / "states" / "experiments").glob("*/client-0/name.txt")
    experiment = named.read_text().strip()
    prepared = quick()
    server = Flower(
        house.grid,
        {},
        experiment=experiment,
        start=1,
        settings=shared_settings(prepared),
        fingerprint=prepared.fingerprint(),
        deadline=60.0,
        trained={0: 3},
        settled=3,
    )
    job = Job(0, 4, None, evaluate=True, trained=3)
    message = server._message(job, FIRST_NODE, 60.0)
    assert message.metadata.ttl == 60.0, "it is not delivered after its deadline"
    request, _ = messages.read_request(message.content)
    request = replace(request, **changes)
    message.content = messages.request(request, None)
    (name,) = house.grid.push_messages([message])
    (answer,) = house.grid.pull_messages([name])
    asked = replace(job, client_id=request.client, round=request.round)
    return messages.read_answer(answer.content, asked)


@pytest.fixture
def house(tmp_path: Path) -> House:
    """After three rounds."""
    house = House(tmp_path / "house", quick("federation.rounds=3"))
    house.run()
    return house


def test_a_participant_answers_what_is_right(house: House) -> None:
    reply = ask(house)
    assert reply.error is None
    assert 0 <= reply.metrics["accuracy"] <= 1
    assert reply.up is None


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"round": 2, "trained": 1}, "round 2 is over; this message is late"),
        ({"start": 0}, "round 4 is over; this message is late"),
        ({"trained": 2, "start": 2}, None),  # a server that had to go back to round 2
        ({"trained": 1, "start": 2}, r"the state of client 0 after round 1 is not in its folder"),
        ({"version": "9.9"}, "the server has fedgh 9.9, here is"),
        ({"client": 1}, "takes this node for client 1, its own settings say client=0"),
        ({"fingerprint": "other"}, "the data or the versions here are not those of the server"),
        ({"settings": {"data": {"name": "nowhere"}}}, "no data set 'nowhere'"),
    ],
)
def test_a_participant_refuses_what_is_wrong(
    house: House, changes: dict[str, Any], refusal: str | None
) -> None:
    before = house.states()
    reply = ask(house, **changes)
    assert (reply.error is None) == (refusal is None)
    assert re.search(refusal or "", reply.error or "")
    assert house.states() == before


def test_a_folder_outside_its_own_is_refused(house: House) -> None:
    error = ask(house, experiment="..").error
    assert error is not None
    assert "experiment: String should match pattern" in error


def test_two_processes_never_work_for_one_client(house: House) -> None:
    with (house.home(0) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ask(house).error == "still busy with an earlier message"


def test_paths_of_the_server_mean_nothing_to_a_participant(house: House) -> None:
    settings = shared_settings(quick())
    settings["data"]["path"] = "/etc/passwd"
    settings["data"]["dir"] = "/etc"
    assert ask(house, settings=settings).error is None


def test_a_participant_keeps_what_may_be_asked_for_and_no_more(house: House) -> None:
    assert [path.name for path in sorted(house.home(0).glob("*.safetensors"))] == [
        "client-000000.round-000002.safetensors",
        "client-000000.round-000003.safetensors",
    ]


def test_what_is_no_message_is_refused_in_words(house: House) -> None:
    hostile: list[RecordDict] = [
        RecordDict(),
        RecordDict({"fedgh": ConfigRecord({"json": b"{"})}),
        RecordDict({"fedgh": ConfigRecord({"json": b'{"version": 3}'})}),
        RecordDict({"fedgh": ConfigRecord({"json": "text"})}),
        RecordDict({"fedgh": ArrayRecord({"json": Array("u1", (1,), "x", b"a")})}),
    ]
    for content in hostile:
        message = Message(content, FIRST_NODE, "train", group_id="1")
        (name,) = house.grid.push_messages([message])
        (answer,) = house.grid.pull_messages([name])
        assert b"not a" in bytes(answer.content["fedgh"]["json"])  # type: ignore[arg-type]


# What a hostile or broken participant may send instead of its honest answer.

Head = dict[str, Any]
NOISE = "\x1b[2Jround 2 is done\n, accuracy 99.9% " + "x" * 400
HOSTILE: dict[str, tuple[Callable[[Head], Head], str]] = {
    "another's name": (lambda head: {**head, "client_id": 2}, "an answer of client 2 in round"),
    "another round": (lambda head: {**head, "round": 77}, "an answer of client 1 in round 77"),
    "nothing": (lambda head: {}, "client_id: Field required"),
    "infinite scores": (
        lambda head: {**head, "metrics": {"train_loss": float("inf")}},
        "metrics.train_loss: Input should be",
    ),
    "sums that overflow": (
        lambda head: {**head, "metrics": {"train_loss": 1.7e308}},
        "metrics.train_loss: Input should be less",
    ),
    "wonderful scores": (
        lambda head: {**head, "metrics": {"accuracy": 7.0, "evaluation_accuracy": 1.0}},
        "an impossible accuracy",
    ),
    "many scores": (
        lambda head: {**head, "metrics": {f"m{chr(97 + k)}": 0.0 for k in range(20)}},
        "metrics: Dictionary should have at most 16 items",
    ),
    "odd names": (
        lambda head: {**head, "metrics": {"../" + NOISE: 1.0}},
        r"metrics\..*2Jround",
    ),
    "negative time": (
        lambda head: {**head, "seconds": {"train": -5.0}},
        "seconds.train: Input should be greater",
    ),
    "negative counts": (lambda head: {**head, "num_examples": -1}, "num_examples: Input should be"),
    "wrong types": (lambda head: {**head, "round": "1"}, "round: Input should be a valid integer"),
    "long words": (lambda head: {**head, "error": "x" * 10_000}, "error: String should have at"),
    "extra fields": (lambda head: {**head, "extra": 1}, "extra: Unexpected keyword argument"),
}


def taken_over(change: Callable[[Message, Message], Message]) -> ClientApp:
    """Client 1 is in the hands of somebody who changes what it honestly answers."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        honest = client.app(message, context)
        return change(message, honest) if context.node_config["client"] == 1 else honest

    return app


def parts(message: Message) -> tuple[Head, bytes]:
    """The head and the payload of an answer."""
    head, body = messages.unpack(message.content)
    assert body is not None
    return json.loads(head), body


TWO_ROUNDS = ["federation.rounds=2", "run.deadline=20"]


@pytest.fixture(scope="module")
def without_client_1(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What the others learn alone."""
    out = tmp_path_factory.mktemp("without") / "run"
    absent = {(1, 1), (1, 2)}
    return loop.run(quick(*TWO_ROUNDS), out, make_engine=with_absent(absent, "away"))


def assert_costs_only_its_sender(
    tmp_path: Path, straight: RunFolder, app: ClientApp, reason: str
) -> None:
    run = House(tmp_path / "house", quick(*TWO_ROUNDS), [app]).run()
    for record, expected in zip(run.records(), straight.records(), strict=True):
        (bad,) = record["failed"] + record["rejected"]
        assert bad["client"] == 1
        assert re.search(reason, bad["reason"])
        assert len(bad["reason"]) <= 500
        assert bad["reason"].isprintable()
        assert record["accuracy_per_client"][0] == expected["accuracy_per_client"][0]
        assert record["train_loss"] == expected["train_loss"]
    header = load_file(run.checkpoint / "server.safetensors")
    for name, tensor in load_file(straight.checkpoint / "server.safetensors").items():
        if name.startswith("server."):
            assert header[name].equal(tensor), "what the others have learned is untouched"


def test_nobody_works_for_longer_than_there_is_time(tmp_path: Path) -> None:
    def boast(message: Message, honest: Message) -> Message:
        head, body = parts(honest)
        head["seconds"] = dict.fromkeys(head["seconds"], 1e9)
        return Message(messages.pack(json.dumps(head).encode(), body), reply_to=message)

    for record in House(tmp_path, quick(*TWO_ROUNDS), [taken_over(boast)]).run().records():
        assert record["failed"] == record["rejected"] == []
        assert record["seconds"]["train"] <= 5 * 120, "the first round has two minutes, for each"


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_costs_only_its_sender(
    what: str, without_client_1: RunFolder, tmp_path: Path
) -> None:
    mutate, reason = HOSTILE[what]

    def change(message: Message, honest: Message) -> Message:
        head, body = parts(honest)
        content = messages.pack(json.dumps(mutate(head)).encode(), body)
        return Message(content, reply_to=message)

    assert_costs_only_its_sender(tmp_path, without_client_1, taken_over(change), reason)


def _no_content(message: Message, honest: Message) -> Message:
    return Message(RecordDict(), reply_to=message)


def _no_json(message: Message, honest: Message) -> Message:
    return Message(messages.pack(b"\xff\xfe", None), reply_to=message)


def _no_safetensors(message: Message, honest: Message) -> Message:
    head, _ = parts(honest)
    return Message(messages.pack(json.dumps(head).encode(), b"x"), reply_to=message)


def _neither_upload_nor_reason(message: Message, honest: Message) -> Message:
    head, _ = parts(honest)
    return Message(messages.pack(json.dumps(head).encode(), None), reply_to=message)


def _to_another_message(message: Message, honest: Message) -> Message:
    honest.metadata.__dict__["_reply_to_message_id"] = "somebody else's"
    head, body = parts(honest)
    honest.content = messages.pack(json.dumps({**head, "client_id": 2}).encode(), body)
    return honest


def _noise(message: Message, honest: Message) -> Message:
    head, _ = parts(honest)
    return Message(
        messages.pack(json.dumps({**head, "error": NOISE}).encode(), None), reply_to=message
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
        (_neither_upload_nor_reason, "neither an upload nor a reason"),
        (_to_another_message, "an answer of client 2"),
        (_noise, r"^\[2Jround 2 is done , acc"),
        (_gone, r"Flower error 5: \[2Jround"),
        (_raises, "Flower error 2: out of order"),
    ],
)
def test_a_broken_answer_costs_only_its_sender(
    change: Callable[[Message, Message], Message],
    reason: str,
    without_client_1: RunFolder,
    tmp_path: Path,
) -> None:
    assert_costs_only_its_sender(tmp_path, without_client_1, taken_over(change), reason)


def test_bytes_that_are_no_message_cost_only_their_sender(
    without_client_1: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower hands out each reply once: one that cannot be read must not take others with it."""
    reply = Unreliable._reply

    def damaged(self: Unreliable, name: str) -> Message | None:
        found = reply(self, name)
        if found is not None and found.metadata.src_node_id == FIRST_NODE + 1:
            raise ValueError("these bytes are no message")
        return found

    monkeypatch.setattr(Unreliable, "_reply", damaged)
    assert_costs_only_its_sender(
        tmp_path, without_client_1, client.app, r"not a readable message \(ValueError\)"
    )


@pytest.mark.parametrize("times", [1, 2**62])
def test_trouble_of_the_superlink_is_not_its_clients_fault(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, until the round is over."""
    reply, left = Unreliable._reply, times

    def troubled(self: Unreliable, name: str) -> Message | None:
        nonlocal left
        if self._waiting.get(name) == FIRST_NODE + 1:
            left -= 1
            if left >= 0:
                ask = httpx.Request("POST", "http://superlink")
                answer = httpx.Response(500, request=ask)
                raise httpx.HTTPStatusError("500", request=ask, response=answer)
        return reply(self, name)

    monkeypatch.setattr(Unreliable, "_reply", troubled)
    experiment = quick("federation.rounds=1", "run.strikes=1", "run.deadline=3")
    (record,) = House(tmp_path / "house", experiment).run().records()
    assert record["rejected"] == record["set_aside"] == []
    reason = "no answer within 3 s; the SuperLink answered 500"
    assert record["failed"] == ([] if times == 1 else [{"client": 1, "reason": reason}])


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (httpx.ConnectError("gone"), "the SuperLink is out of reach: gone"),
        (RunNotRunningException(), "Flower has stopped this run"),
    ],
)
def test_a_lost_superlink_ends_the_run(
    problem: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object) -> Message | None:
        raise problem

    monkeypatch.setattr(Unreliable, "_reply", raising)
    with pytest.raises(RunError, match=words):
        House(tmp_path / "house", quick()).run()


def test_an_answer_without_scores_is_an_answer(tmp_path: Path) -> None:
    def change(message: Message, honest: Message) -> Message:
        head, body = parts(honest)
        content = messages.pack(json.dumps({**head, "metrics": {"accuracy": 0.5}}).encode(), body)
        return Message(content, reply_to=message)

    run = House(tmp_path / "house", quick("federation.rounds=2"), [taken_over(change)]).run()
    for record in run.records():
        assert record["failed"] == record["rejected"] == []
        assert record["accuracy_per_client"][1] is None


# Participants with their own networks and data.

PRIVATE = ["data.name=private", "data.classes=a,b,c", "federation.clients=3", "model.rep_dim=8"]


class Secretive(nn.Module):
    """A network that nobody else has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


Points = tuple[torch.Tensor, torch.Tensor]


def bring(task: Task, node: NodeConfig) -> Participant:
    """Three clouds of points."""
    rng = torch.Generator().manual_seed(int(node["client"]))
    y = torch.arange(90) % task.num_classes
    centres = torch.eye(task.num_classes, 5) * 4
    x = centres[y] + torch.randn(90, 5, generator=rng)
    return Participant(Secretive(task.rep_dim), (x, y))


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd", "lg_fedavg", "standalone"])
def test_participants_bring_their_own_networks_and_data(method: str, tmp_path: Path) -> None:
    experiment = quick(*PRIVATE, f"method.name={method}", "local.lr=0.1", "federation.rounds=4")
    house = House(tmp_path / "house", experiment, [client_app(bring)])
    run = house.run()
    summary = run.summary()
    assert summary is not None
    assert summary["final_accuracy"] > 0.9
    assert summary["paper_bytes_per_client_round"] is None
    assert not any("global" in key for key in (*summary, *run.records()[-1]))
    assert [c["extractor"] for c in run.clients()] == ["private"] * 3


def test_a_server_forgets_a_participant_of_fedgh_plus(tmp_path: Path) -> None:
    words = ["method.name=fedgh_plus", "method.feature_dim=16", "data.shape=[5]", "local.lr=0.1"]
    experiment = quick(*PRIVATE, *words, "federation.rounds=4")
    run = House(tmp_path / "house", experiment, [client_app(bring)]).run()
    assert run.records()[-1]["accuracy"] > 0.9
    before = part(run.committed()[1], "server.")
    assert forget(run.path, 1) == Forgotten(1, 0, elsewhere=True)
    after = part(run.committed()[1], "server.")
    left = [Moments.read(part(before, f"client.{k}."), 3) for k in (0, 2)]
    assert after["sum.second"].equal((left[0] + left[1]).second)
    assert after["given"].tolist() == [True, False, True]


def test_nothing_of_a_network_or_of_data_leaves_the_participant(tmp_path: Path) -> None:
    seen: list[bytes] = []
    own = client_app(bring)
    spy = ClientApp()

    @spy.train()
    def train(message: Message, context: Context) -> Message:
        answer = own(message, context)
        seen.extend(
            [bytes(answer.content["fedgh"]["json"]), answer.content["payload"]["safetensors"].data]  # type: ignore[arg-type,union-attr]
        )
        return answer

    House(tmp_path / "house", quick(*PRIVATE, "federation.rounds=1"), [spy]).run()
    for head, body in zip(seen[::2], seen[1::2], strict=True):
        assert set(json.loads(head)) == {
            "client_id",
            "round",
            "num_examples",
            "metrics",
            "seconds",
            "error",
        }
        assert json.loads(head)["num_examples"] == 0  # fedgh does not ask for it
        payload = wire.from_bytes(body)
        assert {name: tuple(tensor.shape) for name, tensor in payload.items()} == {
            "classes": (3,),
            "means": (3, 8),
        }


def test_first_weights_are_drawn_from_a_secret_and_stay_the_same(tmp_path: Path) -> None:
    """The network's own, and those of the projection to the width that all agree on."""

    def wide(task: Task, node: NodeConfig) -> Participant:
        return replace(bring(task, node), network=Secretive(task.rep_dim + 1))

    def weights(home: str) -> Payload:
        (tmp_path / home).mkdir(exist_ok=True)
        own = participant._own(quick(*PRIVATE), 0, wide, {"client": 0}, tmp_path / home)
        return own.make(0).model.extractor.state_dict()

    one, again, other = weights("one"), weights("one"), weights("other")
    assert {"body", "projection"} == {name.split(".")[0] for name in one}
    assert all(tensor.equal(again[name]) for name, tensor in one.items())
    assert not any(tensor.equal(other[name]) for name, tensor in one.items())
    secret = tmp_path / "one" / "secret"
    assert (len(secret.read_bytes()), secret.stat().st_mode & 0o777) == (16, 0o600)


def test_an_error_in_a_participants_code_tells_nothing_of_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def careless(task: Task, node: NodeConfig) -> Participant:
        if node["client"] == 1:
            raise FileNotFoundError("/data/patient-17.png")
        return bring(task, node)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(careless)])
    (failure,) = house.run().records()[0]["failed"]
    assert failure["reason"] == "FileNotFoundError; the participant's own log says more"
    assert "patient-17" in caplog.text


@pytest.mark.parametrize(
    ("brought", "problem"),
    [
        (lambda x, y: Participant(nn.Flatten(0), (x, y)), r"instead of a vector per sample"),
        (lambda x, y: Participant(Secretive(8), (x[:, :3], y)), r"fails on inputs of shape \(3,\)"),
        (lambda x, y: Participant(Secretive(8), (x, y + 1)), r"labels from 1 to 3"),
        (lambda x, y: Participant(Secretive(8), (x[:2], y[:2])), r"needs at least 3"),
        (lambda x, y: Participant(Secretive(8), (x, y[:5])), r"90 inputs and 5 labels"),
    ],
)
def test_what_a_participant_brings_is_checked(
    brought: Callable[..., Participant],
    problem: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(task: Task, node: NodeConfig) -> Participant:
        x, y = cast(Points, bring(task, node).data)
        return brought(x, y)

    house = House(tmp_path / "house", quick(*PRIVATE), [client_app(make)])
    with pytest.raises(RunError, match=r"what it brings does not fit; the participant's own log"):
        house.run()
    assert re.search(problem, caplog.text)


def test_data_of_ones_own_do_not_go_with_a_federation_that_deals(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick(), [client_app(bring)])
    with pytest.raises(RunError, match="deals out its data"):
        house.run()
    house = House(tmp_path / "other", quick(*PRIVATE))
    with pytest.raises(RunError, match="name your app"):
        house.run()


@pytest.mark.parametrize(
    ("overrides", "refusal"),
    [
        ({"method": {"name": "fedavg"}, "shape": [5]}, "does not take part in fedavg"),
        ({"method": {"name": "side_effect:X"}}, "method.name = 'side_effect:X' is not part"),
        (
            {"method": {"name": "fml", "shared": "side_effect:X"}},
            "side_effect:X' is not part",
        ),
        ({"method": {"name": "nowhere"}}, "no method 'nowhere'"),
    ],
)
def test_a_participant_does_what_it_agreed_to_and_no_more(
    overrides: dict[str, Any], refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server asks: no other network, no module of the participant's machine."""
    house = House(tmp_path / "house", quick(*PRIVATE, "federation.rounds=1"), [client_app(bring)])
    (tmp_path / "side_effect.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = messages.request

    def other_settings(request: messages.Request, down: bytes | None) -> RecordDict:
        settings = {name: dict(section) for name, section in request.settings.items()}
        settings["method"] = overrides.get("method", settings["method"])
        settings["data"].update({"shape": overrides["shape"]} if "shape" in overrides else {})
        settings["model"]["zoo"] = ["side_effect:X"]  # is never looked at: it brings its own
        return asked(replace(request, settings=settings), down)

    monkeypatch.setattr(messages, "request", other_settings)
    with pytest.raises(RunError, match=refusal):
        house.run()
    assert house.states() == {}


def test_other_data_than_before_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was kept for testing would be trained on."""
    more = 0

    def growing(task: Task, node: NodeConfig) -> Participant:
        nonlocal more
        brought = bring(task, node)
        if node["client"] != 1:
            return brought
        more += 1
        x, y = cast(Points, brought.data)
        return replace(brought, data=(x[: 60 + more], y[: 60 + more]))

    run = House(tmp_path / "house", quick(*PRIVATE), [client_app(growing)]).run()
    assert [[f["client"] for f in record["failed"]] for record in run.records()] == [[], [1], [1]]
    assert "the data are not those of the first round" in caplog.text


def test_the_app_that_the_node_config_names_is_used(tmp_path: Path) -> None:
    named = {"app": "tests.flower.test_grid:named"}
    run = House(tmp_path / "house", quick(*PRIVATE), settings=named).run()
    assert run.records()[-1]["failed"] == []
    wrong = {"app": "tests.flower.nowhere:app"}
    with pytest.raises(RunError, match="app cannot be used"):
        House(tmp_path / "other", quick(*PRIVATE), settings=wrong).run()


named = client_app(bring)


def test_private_data_are_nowhere_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the data are with the participants"):
        loop.run(quick(*PRIVATE), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"data\.classes"):
        quick("data.name=private")
    with pytest.raises(ConfigError, match=r"run\.global_accuracy = 'every' needs the data of all"):
        quick(*PRIVATE, "run.global_accuracy=true")
    with pytest.raises(ConfigError, match=r"data\.samples is about data that are dealt here"):
        quick(*PRIVATE, "data.samples=9")
    for method in ("fedavg", "fml"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            quick(*PRIVATE, f"method.name={method}")


@pytest.mark.parametrize("hangs", ["app", "import"])
def test_a_client_that_hangs_is_ended(hangs: str, house: House, tmp_path: Path) -> None:
    """Through the app, in a process of its own, as Flower would start it."""
    hanging = "import time\ntime.sleep(100)\n"
    if hangs == "app":
        hanging = (
            "import time\nfrom fedgh.flower import client_app\n"
            "app = client_app(lambda task, node: time.sleep(100))\n"
        )
    (tmp_path / "hanging.py").write_text(hanging)
    script = """
from fedgh.flower import client
from fedgh.flower.engine import Flower
from fedgh.flower.grid import LocalGrid, Node
from fedgh.core.types import Job
grid = LocalGrid({7: Node(client.app, {"client": 0, "app": "hanging:app"}, b"")})
settings = {"data": {"name": "private", "classes": ["a", "b"]}}
server = Flower(grid, {}, experiment="e", start=1, settings=settings, fingerprint=None,
                deadline=2.0, trained={}, settled=0)
(name,) = grid.push_messages([server._message(Job(0, 1, None, True), 7, 2.0)])
grid.pull_messages([name])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "hanging" in done.stderr, "the participant sees where"


def test_wire_bytes_are_measured_beside_tensor_bytes(house: House) -> None:
    for record in RunFolder(house.path / "run").records():
        assert record["wire_bytes"] > record["bytes_up"] + record["bytes_down"]


def test_a_run_from_elsewhere_is_refused(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick())
    interrupted(quick(), house.path / "run", 1)
    with pytest.raises(RunError, match="was begun without Flower"):
        house.run()


def test_a_run_on_flower_cannot_be_resumed_without_it(tmp_path: Path) -> None:
    house = House(tmp_path / "house", quick())
    house.grid.break_after = 7
    with pytest.raises(KeyboardInterrupt):
        house.run()
    with pytest.raises(RunError, match="lacks the state of client 0"):
        loop.resume(house.path / "run")
