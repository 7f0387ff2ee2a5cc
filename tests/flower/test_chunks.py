"""Replies that are small on their way and large when they are put together."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import httpx
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.clientapp import ClientApp
from flwr.superlink.grid import InMemoryGrid

from fedgh.core.types import Job, Reply
from fedgh.errors import RunError, WireError
from fedgh.flower import _flwr, client, engine, messages
from fedgh.flower._flwr import Inbox, Limit
from fedgh.flower.deployment import deployed, follow
from fedgh.flower.engine import Flower
from fedgh.flower.grid import LocalGrid, Node
from tests.flower.real import federation, two

MIB = 2**20
JOB = Job(client_id=0, round=1, down=b"", evaluate=True, max_upload=2 * MIB)
UP = bytes(range(256)) * 4 * 1024  # 1 MiB


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process there is nothing to wait for."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)


def app_that_answers(content: RecordDict) -> ClientApp:
    """An app that answers the same to everything."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(content, reply_to=message)

    return app


def grid_of(*contents: RecordDict) -> LocalGrid:
    """Participants 0, 1, ... that answer this."""
    nodes = {1000 + k: Node(app_that_answers(c), {}, b"%d" % k) for k, c in enumerate(contents)}
    return LocalGrid(nodes)


def replies_to(grid: LocalGrid, *jobs: Job, deadline: float = 20.0) -> Iterator[Reply]:
    """The replies to jobs as they come."""
    keys = {node_id - 1000: node.public_key for node_id, node in grid.nodes.items()}
    server = Flower(
        grid,
        keys,
        experiment="e",
        start=1,
        settings={},
        fingerprint=None,
        deadline=deadline,
        trained={},
        settled=0,
    )
    return server.run(jobs)


def honest(up: bytes, client: int = 0) -> RecordDict:
    return messages.pack_answer(Reply(client, 1, up=up, metrics={"accuracy": 0.5}))


def payload(*chunks: bytes) -> Array:
    """An array that names these chunks, however often."""
    array = Array("uint8", (1,), "safetensors", b"")
    parts = [ArrayChunk(memoryview(chunk)) for chunk in chunks]
    array.__dict__["_chunks"] = [(part.object_id, part) for part in parts]
    return array


def with_body(record: object) -> RecordDict:
    return RecordDict({"fedgh": honest(b"")["fedgh"], "payload": record})  # type: ignore[dict-item]


def with_arrays(*arrays: Array) -> RecordDict:
    record = ArrayRecord()
    for name, array in zip(("safetensors", "more"), arrays, strict=False):
        record[name] = array
    return with_body(record)


# Uploads that are larger than a chunk


@pytest.mark.parametrize(
    ("up", "chunks"), [(Random(0).randbytes(12 * MIB), 3), (bytes(12 * MIB), 2), (UP, 1), (b"", 0)]
)
def test_an_honest_upload_of_several_chunks_arrives_as_it_was(up: bytes, chunks: int) -> None:
    """Flower cuts every 5 MiB; chunks of the same bytes travel once."""
    content = honest(up)
    array = content["payload"]["safetensors"]
    assert isinstance(array, Array)
    assert len(array.children) == chunks
    grid = grid_of(content)
    (reply,) = replies_to(grid, Job(0, 1, b"", evaluate=True, max_upload=len(up)))
    assert (reply.up, reply.invalid, reply.error) == (up, None, None)
    assert len(grid._objects) == 0, "the SuperLink is told that it has arrived"


def test_wire_bytes_are_those_of_the_objects_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    add = _flwr._PartialReply.add

    def count(self: _flwr._PartialReply, name: str, content: bytes) -> None:
        sizes.append(len(content))
        add(self, name, content)

    monkeypatch.setattr(_flwr._PartialReply, "add", count)
    (short,) = replies_to(grid_of(honest(b"")), JOB)
    small = sum(sizes)
    sizes.clear()
    (long,) = replies_to(grid_of(honest(UP)), JOB)
    assert sum(sizes) > small + MIB
    assert long.wire_bytes - short.wire_bytes == pytest.approx(sum(sizes) - small, abs=16)


# Bombs

BOMB = """
import resource
from tests.flower import test_chunks as here

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

grid = here.grid_of(here.with_arrays(here.payload(*[here.UP] * 400)))
list(here.replies_to(here.grid_of(here.honest(here.UP)), here.JOB))
before = peak()
(reply,) = here.replies_to(grid, here.JOB)
print(peak() - before, reply.invalid)
"""


def test_a_chunk_that_is_named_many_times_takes_no_memory() -> None:
    """1 MiB on its way, 400 MiB as an array, and twice that while Flower assembles it."""
    done = subprocess.run(
        [sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=120, check=True
    )
    growth, _, reason = done.stdout.strip().partition(" ")
    assert int(growth) < 40, f"{growth} MiB for a reply of 2 MiB"
    assert reason.startswith("an array of 41943")


def _two_arrays() -> RecordDict:
    one, two = payload(UP), payload(UP)
    two.dtype = "int8"
    return with_arrays(one, two)


def _records(count: int) -> RecordDict:
    return RecordDict({f"r{k}": ConfigRecord({"json": b"%d" % k}) for k in range(count)})


def _long_record() -> RecordDict:
    return RecordDict({"fedgh": ConfigRecord({"json": bytes(2 * MIB)})})


HOSTILE: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "one chunk often": (
        lambda: with_arrays(payload(*[UP] * 9)),
        r"an array of \d+ bytes in a reply that may have 2097152",
    ),
    "a long chunk": (lambda: with_arrays(payload(UP * 4)), r"an object of \d+ bytes in a reply"),
    "long chunks": (
        lambda: with_arrays(payload(UP, UP[1:], UP[2:])),
        r"an object of \d+ bytes in a reply",
    ),
    "many chunks": (
        lambda: with_arrays(payload(*[b"%d" % k for k in range(1_000)])),
        "a reply of 1005 objects; it may have 18",
    ),
    "many records": (lambda: _records(50), "a reply of 52 objects; it may have 18"),
    "a long record": (_long_record, r"an object of \d+ bytes in a reply"),
    "a long list of no bytes": (
        lambda: with_arrays(payload(*[b""] * 500_000)),
        r"an object of \d+ bytes in a reply",
    ),
    "two arrays of one chunk": (_two_arrays, "a reply that has one object in two places"),
    "another record": (
        lambda: with_body(MetricRecord({"x": 1})),
        "a reply with a MetricRecord in the wrong place",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_reply_beyond_the_limit_is_never_assembled(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, reason = HOSTILE[what]
    inflate, assembled = _flwr.inflate_object_from_contents, []

    def watched(root: str, contents: dict[str, bytes]) -> object:
        assembled.append(root)
        return inflate(root, contents)

    monkeypatch.setattr(_flwr, "inflate_object_from_contents", watched)
    grid = grid_of(make(), honest(b"fine", client=1))
    bad, good = replies_to(grid, JOB, Job(1, 1, b"", evaluate=True, max_upload=9))
    assert (bad.client_id, bad.up, bad.error) == (0, None, None)
    assert re.search(reason, bad.invalid or "")
    assert (good.client_id, good.up) == (1, b"fine")
    assert len(assembled) == 1, "only the honest one"
    assert len(grid._objects) == 0, "the SuperLink need not keep it"


def test_a_reply_without_an_upload_has_no_room_for_one() -> None:
    (reply,) = replies_to(grid_of(honest(UP)), Job(0, 1, None, evaluate=True))
    assert reply.invalid is not None
    assert "in a reply that may have" in reply.invalid


# Replies that come in parts


class Slow(LocalGrid):
    """The chunks of client 0 have not come yet; or they are lost."""

    content: bytes | None = b""

    def hold_back(self) -> None:
        """From now on."""
        get = self._objects.get

        def slowly(object_id: str) -> bytes | None:
            found = get(object_id)
            return self.content if found and found.startswith(b"ArrayChunk") else found

        self._objects.get = slowly  # type: ignore[method-assign]


def slow(*contents: RecordDict) -> Slow:
    grid = Slow(grid_of(*contents).nodes)
    grid.hold_back()
    return grid


def test_a_reply_that_is_not_complete_does_not_delay_the_others() -> None:
    nothing_up = messages.pack_answer(Reply(1, 1, error="no"))
    grid = slow(honest(UP), nothing_up)
    replies = replies_to(grid, JOB, Job(1, 1, b"", evaluate=True))
    assert next(replies).client_id == 1
    del grid._objects.get  # the rest arrives
    late = next(replies)
    assert (late.client_id, late.up) == (0, UP)


def test_a_reply_that_is_never_complete_is_late() -> None:
    (reply,) = replies_to(slow(honest(UP)), JOB, deadline=0.5)
    assert reply.error == "no answer within 0.5 s"


def test_a_reply_of_which_a_part_is_lost_is_a_failure() -> None:
    grid = slow(honest(UP))
    grid.content = None
    (reply,) = replies_to(grid, JOB)
    assert reply.error == "its node has sent only a part of the reply"


# Over HTTP


class Unread(httpx.SyncByteStream):
    """A body that must not be read."""

    def __iter__(self) -> Iterator[bytes]:
        pytest.fail("it is being read")


@pytest.mark.parametrize("long", ["/v1/runtime/pull-messages", "/v1/runtime/pull-object"])
def test_a_response_that_is_too_long_is_not_read(long: str) -> None:
    def superlink(request: httpx.Request) -> httpx.Response:
        if request.url.path == long:
            return httpx.Response(200, headers={"content-length": str(2**40)}, stream=Unread())
        found = _flwr.PullAppMessagesResponse(messages_list=[_flwr.message_to_proto(error)])
        short = found.SerializeToString() if request.url.path.endswith("messages") else b""
        return httpx.Response(200, content=short)

    grid = grid_of()
    error = Message(RecordDict(), 1, "train")
    error.metadata.__dict__["_message_id"] = "root"
    grid._client = _flwr.RuntimeHttpClient("http://superlink", verify=False)
    grid._client._client = httpx.Client(transport=httpx.MockTransport(superlink))
    inbox = Inbox(grid)
    with pytest.raises(WireError, match=f"an object of {2**40} bytes in a reply that may have"):
        inbox.pull("name", Limit(record=MIB, array=MIB))
    assert inbox._superlink._client.get("http://superlink" + long.replace("pull", "push")), (
        "other requests have no limit"
    )


bomber = ClientApp()


@bomber.train()
def train(message: Message, context: Context) -> Message:
    """Client 1 answers with a bomb."""
    reply = client.app_of(client.partitioned_client)(message, context)
    if context.node_config["client"] == 1:
        array = reply.content["payload"]["safetensors"]
        assert isinstance(array, Array)
        array.__dict__["_chunks"] = array.slice_array() * 100_000
    return reply


@pytest.mark.faults
@pytest.mark.xdist_group("deployment")
@pytest.mark.timeout(600)
def test_a_bomb_costs_only_its_sender_also_on_a_real_superlink(tmp_path: Path) -> None:
    config = 'app="tests.flower.test_chunks:bomber"'
    folder = federation(tmp_path / "federation", two("federation.rounds=2"), config)
    out = tmp_path / "run"
    with deployed(folder, 2, print) as running:
        run = follow(running, running.train(out), out, lambda _: None)
    for record in run.records():
        (bad,) = record.rejected
        assert bad.client == 1
        assert "in a reply that may have" in bad.reason
        assert record.failed == []


def test_a_grid_without_a_superlink_is_refused() -> None:
    grid = InMemoryGrid.__new__(InMemoryGrid)
    with pytest.raises(RunError, match="runs on Flower's SuperLink, not on its InMemoryGrid"):
        Inbox(grid)
