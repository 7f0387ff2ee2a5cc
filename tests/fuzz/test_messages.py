"""Any message from Flower gives a reply, a request, or one line of error."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgh import __version__, config
from fedgh.core.types import Job
from fedgh.engines.host import Blueprint
from fedgh.errors import WireError
from fedgh.flower import client, engine, messages
from fedgh.flower.bound import NodeConfig
from fedgh.flower.grid import LocalGrid
from tests.fuzz import oracle
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import NAMES, tampered
from tests.fuzz.refusal import Refused, attempt
from tests.trust.watch import RECORDER

JOB = Job(client_id=2, round=7, down=b"", evaluate=True)
ANSWER: dict[str, Any] = {
    "client_id": 2,
    "round": 7,
    "num_examples": 40,
    "metrics": {"accuracy": 0.5, "train_loss": 1.5},
    "seconds": {"train": 0.25},
    "error": None,
}
REQUEST: dict[str, Any] = {
    "version": __version__,
    "torch": torch.__version__,
    "experiment": "demo",
    "start": 1,
    "client": 2,
    "round": 7,
    "trained": 0,
    "committed": 0,
    "settled": 0,
    "evaluate": True,
    "evaluate_globally": True,
    "deadline": 600.0,
    "settings": {"data": {"name": "private"}, "method": {"name": "fedgh"}},
    "fingerprint": None,
    "public": None,
}

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 9),
        st.sampled_from([2**53, 2**53 + 1, 2**63, 2**64, -(2**70), 10**400]),
        st.floats(),
        NAMES,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def json_texts(draw: DrawFn, honest: dict[str, Any]) -> bytes:
    """Draw the JSON of a message, with some or all fields changed."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=80) | VALUES.map(_json))
    fields = dict(honest)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(honest)))
        match draw(st.sampled_from(["value", "value", "inside", "extra", "missing"])):
            case "value":
                fields[name] = draw(VALUES)
            case "inside" if isinstance(fields.get(name), dict):
                fields[name] = fields[name] | draw(st.dictionaries(KEYS, VALUES, max_size=3))
            case "missing":
                fields.pop(name, None)
            case _:
                fields[draw(NAMES)] = draw(VALUES)
    text = _json(fields)
    match draw(st.sampled_from(["as it is", "number", "number", "tampered"])):
        case "number" if NUMBER.search(text):
            span = draw(st.sampled_from([number.span() for number in NUMBER.finditer(text)]))
            return text[: span[0]] + draw(EDGES) + text[span[1] :]
        case "tampered":
            return draw(tampered(text))
    return text


NUMBER = re.compile(rb"-?\d+(\.\d+)?")
EDGES = st.sampled_from(
    [
        *(b"1.5", b"1.0", b"0", b"-0.25", b"-1", b"1e9", b"1e10", b"1e999", b"NaN", b"Infinity"),
        *(b"9007199254740992", b"9007199254740993", b"9223372036854775808", b"true", b"1" * 5_000),
    ]
)
KEYS = NAMES | st.sampled_from(["accuracy", "validation_accuracy", "train_loss", "data", "run"])


def _json(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


PAYLOADS: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.binary(max_size=20).map(
        lambda data: ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})
    ),
    st.just(ArrayRecord({"other": Array("u1", (1,), "x", b"a")})),
    st.just(ArrayRecord({"safetensors": Array("F32", (-1, 2**62), "pickle", b"\x80\x04.")})),
    st.just(ArrayRecord()),
    st.just(ConfigRecord({"safetensors": b"x"})),
    st.just(MetricRecord({"loss": 1.0})),
)


@st.composite
def contents(draw: DrawFn, honest: dict[str, Any]) -> RecordDict:
    """Draw the content of a message, with records of other kinds and names."""
    json_record: Any = ConfigRecord({"json": draw(json_texts(honest))})
    if draw(st.integers(0, 9)) == 0:
        json_record = draw(
            st.sampled_from(
                [ConfigRecord({"json": "text"}), ConfigRecord(), MetricRecord({"json": 1})]
            )
        )
    records = {"fedgh": json_record, "payload": draw(PAYLOADS)}
    return RecordDict({name: record for name, record in records.items() if record is not None})


@pytest.fixture(scope="module")
def grid() -> LocalGrid:
    return LocalGrid({})


def delivered(grid: LocalGrid, content: RecordDict) -> Message:
    (name,) = grid.push_messages([Message(content, 1, "train", group_id="7")])
    return grid.collect(name)


def is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and low <= value <= high


@fuzz(0.12, content=contents(ANSWER))
def test_an_answer_gives_a_valid_reply_or_an_error(grid: LocalGrid, content: RecordDict) -> None:
    reply = engine.reply_of(JOB, delivered(grid, content), sent_bytes=10)
    assert (reply.client_id, reply.round) == (JOB.client_id, JOB.round)
    assert all(oracle.harmless(text) for text in (reply.error, reply.invalid) if text is not None)
    assert any(part is not None for part in (reply.up, reply.error, reply.invalid))
    assert reply.up is None or isinstance(reply.up, bytes)
    assert type(reply.num_examples) is int
    assert is_number(reply.num_examples, 0, 2**53)
    assert len(reply.metrics) <= 16
    for name, value in reply.metrics.items():
        assert name.isascii()
        assert name.replace("_", "a").isalpha()
        assert is_number(value, *((0, 1) if "accuracy" in name else (-1e9, 1e9)))
    for name, value in reply.seconds.items():
        assert name.isascii()
        assert is_number(value, 0, 1e9)


@fuzz(0.06, content=contents(REQUEST))
def test_a_request_is_read_or_refused(content: RecordDict) -> None:
    outcome = attempt(WireError, lambda: messages.read_request(content))
    if isinstance(outcome, Refused):
        assert oracle.harmless(outcome.why)
        return
    request, down = outcome
    assert set(request.experiment) <= set(SAFE)
    assert not request.experiment.startswith(".")
    assert 0 < request.deadline < math.inf
    assert all(
        0 <= count <= 2**53
        for count in (request.start, request.client, request.round, request.trained)
    )
    assert down is None or isinstance(down, bytes)


SAFE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def _no_client(*_: object) -> Blueprint:
    raise ValueError("a secret")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a client."""
    path = tmp_path_factory.mktemp("client")
    (path / "states").mkdir()
    return path


SETTINGS = sorted(
    (section, key) for section, keys in config.load("demo").to_table().items() for key in keys
)
REQUESTED_VALUES = st.one_of(
    VALUES,
    st.sampled_from(
        [
            *("side_effect:make", "transformers//side_effect", "timm/side_effect", "os:getcwd"),
            *("/side_effect", "../side_effect", "side_effect.invalid:1", "cifar10", "npz", "mlp"),
            *("fedgh", "fml", "fedkd", 10**8, 10**12, 1e300, [10**6, 10**6], ["mlp"]),
        ]
    ),
)


@fuzz(
    0.03,
    changes=st.lists(
        st.tuples(st.sampled_from(SETTINGS), REQUESTED_VALUES), min_size=1, max_size=4
    ),
)
def test_a_client_follows_no_name_in_a_servers_settings(
    grid: LocalGrid,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[tuple[tuple[str, str], Any]],
) -> None:
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(client, "log", lambda _: None)
    monkeypatch.setenv("FEDGH_DATA", str(folder / "nothing"))
    monkeypatch.setattr("pooch.os_cache", lambda _: folder / "nothing")
    settings = config.load("demo", ["model.extractors=mlp", "federation.clients=3"]).to_table()
    for (section, key), value in changes:
        settings[section][key] = value
    content = RecordDict(
        {"fedgh": ConfigRecord({"json": _json({**REQUEST, "settings": settings})})}
    )
    with RECORDER.recording() as events:
        reply = client.answer(
            delivered(grid, content),
            {"client": 2, "state": str(folder / "states")},
            client.partitioned_client,
        )
    assert reply.error is not None, "the fingerprint is not that of these data"
    assert [what for what in events if "side_effect" in what or what.startswith("socket")] == []
    assert oracle.harmless(reply.error)


@fuzz(0.03, content=contents(REQUEST))
def test_a_client_answers_every_request_and_writes_only_in_its_folder(
    grid: LocalGrid, folder: Path, monkeypatch: pytest.MonkeyPatch, content: RecordDict
) -> None:
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda *_, **__: None)
    monkeypatch.setattr(client, "log", lambda _: None)
    node: NodeConfig = {"client": 2, "state": str(folder / "states")}
    reply = client.answer(delivered(grid, content), node, _no_client)
    assert reply.up is None
    assert reply.error is not None
    assert "secret" not in reply.error
    assert isinstance(messages.pack_answer(reply), RecordDict)
    assert [item.name for item in folder.iterdir()] == ["states"]
    assert all(item.is_dir() for item in (folder / "states").iterdir())
