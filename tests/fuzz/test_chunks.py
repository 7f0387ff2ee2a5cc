"""Any objects of a reply give a reply or an error, within limits of time and memory."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from fedgh.core.types import Job, Reply
from fedgh.flower import engine, messages
from fedgh.flower._flwr import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    Inbox,
    Limit,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullObjectRequest,
    PullObjectResponse,
    RuntimeHttpClient,
    get_all_nested_objects,
    message_to_proto,
)
from fedgh.flower.engine import Flower
from fedgh.flower.grid import LocalGrid
from tests.fuzz import oracle
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import NAMES, tampered

JOB = Job(client_id=2, round=7, down=b"", evaluate=True, max_upload=2**20)
MAX_TIME = 5.0  # seconds
MAX_MEMORY = 2**27  # bytes, at any moment


@dataclass(frozen=True)
class FlowerObject:
    """An object as Flower writes it: its kind, the objects it refers to, and its bytes."""

    kind: str
    parts: list[str]
    body: bytes
    length: str

    @classmethod
    def read(cls, content: bytes) -> "FlowerObject":
        head, _, body = content.partition(b"\0")
        kind, parts, length = head.decode().split(" ")
        return cls(kind, parts.split(",") if parts else [], body, length)

    def content(self) -> bytes:
        head = f"{self.kind} {','.join(self.parts)} {self.length}\0"
        return head.encode("utf-8", "surrogatepass") + self.body


def flower_object(kind: str, parts: list[str], body: bytes) -> FlowerObject:
    return FlowerObject(kind, parts, body, str(len(body)))


LocalGrid({})  # sets the identity of this process, which Flower puts into messages
UP = bytes(2**19)
MESSAGE = Message(messages.pack_answer(Reply(2, 7, up=UP, metrics={"accuracy": 0.5})), 1, "train")
HONEST = {
    name: FlowerObject.read(item.deflate())
    for name, item in get_all_nested_objects(MESSAGE).items()
}
ROOT, ARRAY = MESSAGE.object_id, next(n for n, t in HONEST.items() if t.kind == "Array")
CHUNK = HONEST[ARRAY].parts[0]

KINDS = st.sampled_from(
    ["Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "ConfigRecord", "MetricRecord"]
)
LENGTHS = st.sampled_from(["0", "-1", "1e9", "", "9" * 5_000, str(2**63)])
ORDERS: SearchStrategy[Any] = st.sampled_from(
    [
        *([0] * count for count in (1, 2, 3, 400, 100_000, 600_000)),
        *([], [-1], [1], [True], [0.0], ["0"], [None], [[0]], {"0": 0}, "00", 0, None),
    ]
)
DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = st.one_of(
    st.sampled_from([t.body for t in HONEST.values()]),
    st.sampled_from(
        [DEEP, b"[" + b"[]," * 300_000 + b"[]]", b"\x0a\x00" * 500_000, b"{}", b"null"]
    ),
    st.dictionaries(NAMES, st.sampled_from(sorted(HONEST)) | NAMES, max_size=4).map(
        lambda names: json.dumps(names).encode()
    ),
    st.binary(max_size=60),
)


@st.composite
def _changed(draw: DrawFn, objects: dict[str, FlowerObject]) -> dict[str, FlowerObject]:
    """Draw the objects with one false change."""
    name = draw(st.sampled_from(sorted(objects)))
    known = st.sampled_from(sorted(objects))
    match draw(
        st.sampled_from(["order", "order", "size", "parts", "kind", "body", "length", "more"])
    ):
        case "order":
            about = {"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": draw(ORDERS)}
            body = json.dumps(about).encode()
            return objects | {ARRAY: flower_object("Array", objects[ARRAY].parts, body)}
        case "size":
            body = bytes(draw(st.sampled_from([0, 2**20, 2**20 + 2_000, 2**22])))
            return objects | {CHUNK: flower_object("ArrayChunk", [], body)}
        case "parts":
            parts = draw(st.lists(known | NAMES, max_size=4))
            return objects | {name: replace(objects[name], parts=parts)}
        case "kind":
            return objects | {name: replace(objects[name], kind=draw(KINDS | NAMES))}
        case "body":
            body = draw(BODIES)
            return objects | {name: replace(objects[name], body=body, length=str(len(body)))}
        case "length":
            return objects | {name: replace(objects[name], length=draw(LENGTHS))}
    return objects | draw(_many(name, objects[name]))


@st.composite
def _many(draw: DrawFn, name: str, parent: FlowerObject) -> dict[str, FlowerObject]:
    """Draw many more objects, side by side or nested; the last may refer to the first."""
    kind, count = draw(KINDS), draw(st.sampled_from([1, 2, 12, 30, 2_000]))
    names = [f"{name}-{k}" for k in range(count)]
    if draw(st.booleans()):
        new = {own: flower_object(kind, [], b"%d" % k) for k, own in enumerate(names)}
        return new | {name: replace(parent, parts=parent.parts + names)}
    ends = draw(st.sampled_from([[], [name], [CHUNK]]))
    inside = [[after] for after in names[1:]] + [ends]
    new = {own: flower_object(kind, parts, b"{}") for own, parts in zip(names, inside, strict=True)}
    return new | {name: replace(parent, parts=[*parent.parts, names[0]])}


class Store(dict[str, bytes | None]):
    """The objects that a SuperLink has; None is a lost one, b"" has not arrived yet."""

    def __repr__(self) -> str:
        """Return a short text, since the objects may be large."""
        lines = [f"{name[:80]}: {(content or b'')[:160]!r}" for name, content in self.items()]
        return "\n".join(lines[:40])


@st.composite
def stores(draw: DrawFn) -> Store:
    """Draw the objects of a reply with up to three false changes, and perhaps one damaged."""
    objects = HONEST
    for _ in range(draw(st.integers(0, 3))):
        objects = draw(_changed(objects))
    contents = Store({name: t.content() for name, t in objects.items()})
    name = draw(st.sampled_from(sorted(contents)))
    match draw(st.sampled_from(["as it is"] * 5 + ["lost", "late", "tampered"])):
        case "lost":
            contents[name] = None
        case "late":
            contents[name] = b""
        case "tampered":
            contents[name] = draw(tampered(contents[name] or b""))
    return contents


class SuperLink(RuntimeHttpClient):
    """A SuperLink that checks nothing."""

    def __init__(self, contents: Store) -> None:
        super().__init__("http://localhost", verify=False)
        self.contents = contents

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        return PullAppMessagesResponse(messages_list=[message_to_proto(PULLED)])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.contents.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=bool(content),
            object_content=content or b"",
        )

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        return ConfirmMessageReceivedResponse()


PULLED = Message(RecordDict(), 1, "train")
PULLED.metadata.__dict__["_message_id"] = ROOT


@pytest.fixture(scope="module")
def server() -> Flower:
    return Flower(
        LocalGrid({}),
        {},
        experiment="e",
        start=1,
        settings={},
        fingerprint=None,
        deadline=1.0,
        trained={},
        settled=0,
    )


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def received(server: Flower, contents: Store) -> Reply | None:
    grid = LocalGrid({})
    grid._client = SuperLink(contents)
    pulled = server.pull(Inbox(grid), "name", JOB)
    return None if pulled is None else engine.reply_of(JOB, pulled, sent_bytes=10)


def test_the_objects_of_an_honest_reply_give_the_reply(server: Flower) -> None:
    reply = received(server, Store({name: t.content() for name, t in HONEST.items()}))
    assert reply is not None
    assert reply.up == UP
    assert reply.wire_bytes == 10 + sum(len(t.content()) for t in HONEST.values())


@pytest.mark.usefixtures("traced")
@fuzz(0.06, contents=stores())
def test_any_objects_give_a_reply_or_an_error(server: Flower, contents: Store) -> None:
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    began = time.monotonic()
    reply = received(server, contents)
    assert time.monotonic() - began < MAX_TIME
    assert tracemalloc.get_traced_memory()[1] - before < MAX_MEMORY
    if reply is None:
        assert b"" in contents.values(), "no reply only if an object has not arrived"
        return
    assert (reply.client_id, reply.round) == (JOB.client_id, JOB.round)
    assert all(oracle.harmless(text) for text in (reply.error, reply.invalid) if text is not None)
    assert any(part is not None for part in (reply.up, reply.error, reply.invalid))
    assert len(reply.up or b"") <= Limit(record=0, array=JOB.max_upload).chunks
