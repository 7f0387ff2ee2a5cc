"""Replies whose objects are small, but large when assembled."""

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
    """Do not wait between polls or for clients: all are in this process."""
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)


def app_that_answers(content: RecordDict) -> ClientApp:
    """Return an app that answers every message with this content."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(content, reply_to=message)

    return app


def grid_of(*contents: RecordDict) -> LocalGrid:
    """Return a grid with clients 0, 1, ... that answer with these contents."""
    nodes = {1000 + k: Node(app_that_answers(c), {}, b"%d" % k) for k, c in enumerate(contents)}
    return LocalGrid(nodes)


def replies_to(grid: LocalGrid, *jobs: Job, deadline: float = 20.0) -> Iterator[Reply]:
    """Yield the replies to jobs as they arrive."""
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
    """Return an array that refers to these chunks, also repeatedly."""
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
def test_an_honest_upload_of_several_chunks_arrives_unchanged(up: bytes, chunks: int) -> None:
    """Flower splits arrays into chunks of 5 MiB; equal chunks are sent once."""
    content = honest(up)
    array = content["payload"]["safetensors"]
    assert isinstance(array, Array)
    assert len(array.children) == chunks
    grid = grid_of(content)
    (reply,) = replies_to(grid, Job(0, 1, b"", evaluate=True, max_upload=len(up)))
    assert (reply.up, reply.invalid, reply.error) == (up, None, None)
    assert len(grid._objects) == 0, "the SuperLink is told that the reply has arrived"


def test_wire_bytes_count_the_received_objects(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Replies that are much larger when assembled

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


def test_a_chunk_that_is_repeated_many_times_takes_no_memory() -> None:
    """The chunk has 1 MiB, the array 400 MiB, and Flower needs twice that to assemble it."""
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
def test_a_reply_beyond_the_limit_is_rejected_and_never_assembled(
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
    assert len(assembled) == 1, "only the honest reply"
    assert len(grid._objects) == 0, "the SuperLink is told to delete the replies"


def test_an_upload_that_was_not_requested_exceeds_the_limit() -> None:
    (reply,) = replies_to(grid_of(honest(UP)), Job(0, 1, None, evaluate=True))
    assert reply.invalid is not None
    assert "in a reply that may have" in reply.invalid


# Replies that arrive in parts


class DelayedGrid(LocalGrid):
    """A grid whose chunks have not arrived yet (`content` is empty) or are lost (None)."""

    content: bytes | None = b""

    def delay_chunks(self) -> None:
        """Delay or lose all chunks from now on."""
        get = self._objects.get

        def delayed(object_id: str) -> bytes | None:
            found = get(object_id)
            return self.content if found and found.startswith(b"ArrayChunk") else found

        self._objects.get = delayed  # type: ignore[method-assign]


def delayed_grid_of(*contents: RecordDict) -> DelayedGrid:
    grid = DelayedGrid(grid_of(*contents).nodes)
    grid.delay_chunks()
    return grid


def test_an_incomplete_reply_does_not_delay_other_replies() -> None:
    nothing_up = messages.pack_answer(Reply(1, 1, error="no"))
    grid = delayed_grid_of(honest(UP), nothing_up)
    replies = replies_to(grid, JOB, Job(1, 1, b"", evaluate=True))
    assert next(replies).client_id == 1
    del grid._objects.get  # now the chunks arrive
    late = next(replies)
    assert (late.client_id, late.up) == (0, UP)


def test_a_reply_that_stays_incomplete_fails_at_the_deadline() -> None:
    (reply,) = replies_to(delayed_grid_of(honest(UP)), JOB, deadline=0.5)
    assert reply.error == "no answer within 0.5 s"


def test_a_reply_with_a_lost_object_fails() -> None:
    grid = delayed_grid_of(honest(UP))
    grid.content = None
    (reply,) = replies_to(grid, JOB)
    assert reply.error == "its node has sent only a part of the reply"


# Over HTTP


class Unread(httpx.SyncByteStream):
    """A response body that must not be read."""

    def __iter__(self) -> Iterator[bytes]:
        pytest.fail("the body is read")


@pytest.mark.parametrize("long", ["/v1/runtime/pull-messages", "/v1/runtime/pull-object"])
def test_a_response_beyond_the_limit_is_not_read(long: str) -> None:
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


sends_bomb = ClientApp()


@sends_bomb.train()
def train(message: Message, context: Context) -> Message:
    """Answer honestly, but let client 1 repeat the chunk of its upload many times."""
    reply = client.BlueprintApp(client.partitioned_client)(message, context)
    if context.node_config["client"] == 1:
        array = reply.content["payload"]["safetensors"]
        assert isinstance(array, Array)
        array.__dict__["_chunks"] = array.slice_array() * 100_000
    return reply


@pytest.mark.faults
@pytest.mark.xdist_group("deployment")
@pytest.mark.timeout(600)
def test_an_oversized_reply_is_rejected_on_a_real_superlink(tmp_path: Path) -> None:
    config = 'app="tests.flower.test_chunks:sends_bomb"'
    folder = federation(tmp_path / "federation", two("federation.rounds=2"), config)
    out = tmp_path / "run"
    with deployed(folder, 2, print) as running:
        run = follow(running, running.train(out), out, lambda _: None)
    for record in run.records():
        (bad,) = record.rejected
        assert bad.client == 1
        assert "in a reply that may have" in bad.reason
        assert record.failed == []


def test_flowers_simulation_grid_is_refused() -> None:
    grid = InMemoryGrid.__new__(InMemoryGrid)
    with pytest.raises(RunError, match="runs on Flower's SuperLink, not on its InMemoryGrid"):
        Inbox(grid)
