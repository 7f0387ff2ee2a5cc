"""All that fedgh uses of Flower beyond its public names, and a limit on the size of replies.

Flower assembles a reply from objects that name one another, and measures nothing: an array that
names one chunk of 5 MiB a thousand times takes 5 GB. `Inbox` asks for the objects one by one, reads
none that is longer than what the reply may still hold, and adds up what the chunks will come to
before Flower assembles them. The tree of objects that a participant has registered is not used.

Two places are out of its reach. The SuperLink stores what participants send before the server can
ask for it. And a participant's message is assembled by Flower's own process before the client app
is called, so a hostile server can exhaust the memory of that process.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

import httpx
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedgh.errors import RunError, WireError

__all__ = [
    "SUPERLINK_NODE_ID",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "ErrorCode",
    "GetNodesRequest",
    "GetNodesResponse",
    "HttpGrid",
    "InMemoryObjectStore",
    "Inbox",
    "Limit",
    "NodeInfo",
    "ObjectPullError",
    "PullAppMessagesRequest",
    "PullAppMessagesResponse",
    "PullObjectRequest",
    "PullObjectResponse",
    "PushAppMessagesRequest",
    "PushAppMessagesResponse",
    "PushObjectRequest",
    "PushObjectResponse",
    "Run",
    "RunNotRunningException",
    "RuntimeHttpClient",
    "TaskIdentity",
    "get_all_nested_objects",
    "get_object_tree",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "message_to_proto",
    "remove_content_from_message",
]

MAX_FRAME = 2**16
"""Bytes, at most, that Flower adds to a reply of few objects; an honest one has about 1,500."""

OBJECT_FRAME = 80
"""Bytes, at most, that each further object adds: its name, its place in an array, its head."""

FEW = 16
"""Objects in a reply, beside one for each MiB of its array; Flower cuts arrays every 5 MiB."""

_INSIDE = {
    "Message": ("RecordDict",),
    "RecordDict": ("ConfigRecord", "ArrayRecord"),
    "ConfigRecord": (),
    "ArrayRecord": ("Array",),
    "Array": ("ArrayChunk",),
    "ArrayChunk": (),
}
"""The kinds of objects that an object of a reply may consist of."""

_longest_response: ContextVar[int | None] = ContextVar("longest_response", default=None)


@dataclass(frozen=True)
class Limit:
    """The size of the largest reply: bytes in its record, bytes in its array."""

    record: int
    array: int

    @property
    def objects(self) -> int:
        """The number of its objects."""
        return FEW + self.array // 2**20

    @property
    def chunks(self) -> int:
        """The bytes of its chunks."""
        return self.array + OBJECT_FRAME * self.objects

    @property
    def rest(self) -> int:
        """The bytes of all other objects."""
        return self.record + MAX_FRAME + OBJECT_FRAME * self.objects


class Inbox:
    """The replies of one round on their way in."""

    def __init__(self, grid: Grid) -> None:
        if not isinstance(grid, HttpGrid):
            raise RunError(f"fedgh runs on Flower's SuperLink, not on its {type(grid).__name__}")
        self._superlink = grid._runtime_client
        self._superlink._client.event_hooks = {"response": [_refuse_long]}
        self._node, self._run_id = grid.node, grid.run.run_id
        self._begun: dict[str, _Parcel] = {}

    def pull(self, name: str, limit: Limit) -> Message | None:
        """The reply to a message, once all of it has come.

        WireError when it is beyond the limit or has parts that no reply has, ObjectPullError when
        the rest of it will not come, any other error when its bytes are no message. What has not
        come yet is not waited for: the replies of other participants may be there.
        """
        if name not in self._begun:
            root = self._find(name, limit.rest)
            if root is None:
                return None
            self._begun[name] = _Parcel(root, limit)
        parcel = self._begun[name]
        try:
            if not self._fill(parcel):
                return None
            message = parcel.assemble()
        except (httpx.HTTPError, RunNotRunningException):  # it may be tried again
            raise
        except Exception:
            self._drop(name)
            raise
        self._drop(name)
        return message

    def _find(self, name: str, most: int) -> str | None:
        """The object that the reply to a message begins with, if there is one."""
        with _at_most(most):
            found = self._superlink.PullMessages(PullAppMessagesRequest(message_ids=[name]))
        return found.messages_list[0].metadata.message_id if found.messages_list else None

    def _fill(self, parcel: "_Parcel") -> bool:
        """Fetch what is there, and say whether that is everything."""
        while parcel.missing:
            name = next(iter(parcel.missing))
            content = self._fetch(name, parcel.room(name))
            if not content:
                return False
            parcel.add(name, content)
        return True

    def _fetch(self, name: str, most: int) -> bytes:
        """The content of an object; nothing when the participant has not sent it yet."""
        ask = PullObjectRequest(node=self._node, run_id=self._run_id, object_id=name)
        with _at_most(most + OBJECT_FRAME):
            found = self._superlink.PullObject(ask)
        if not found.object_found:
            raise ObjectPullError(name, "the SuperLink does not have it")
        return found.object_content

    def _drop(self, name: str) -> None:
        """Forget a reply, here and at the SuperLink."""
        root = self._begun.pop(name).root
        with suppress(httpx.HTTPError):  # it only frees the SuperLink's memory sooner
            self._superlink.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._node, run_id=self._run_id, message_object_id=root
                )
            )


class _Parcel:
    """A reply of which some objects have come and others may still come."""

    def __init__(self, root: str, limit: Limit) -> None:
        self.root = root
        self.missing: dict[str, tuple[str, ...]] = {root: ("Message",)}  # the kinds each may be of
        self._limit = limit
        self._contents: dict[str, bytes] = {}
        self._arrays: list[bytes] = []
        self._chunks_left, self._rest_left = limit.chunks, limit.rest

    def room(self, name: str) -> int:
        """The bytes that a missing object may have."""
        return self._chunks_left if "ArrayChunk" in self.missing[name] else self._rest_left

    def add(self, name: str, content: bytes) -> None:
        """Take in an object that was missing; now those that it names are."""
        room, kinds = self.room(name), self.missing.pop(name)
        if len(content) > room:
            raise WireError(f"an object of {len(content)} bytes in a reply that has {room} left")
        kind, parts, _ = get_object_head_values_from_object_content(content[: self._limit.rest])
        if kind not in kinds:
            raise WireError(f"a reply with a {kind} in the wrong place")
        self._contents[name] = content
        if kind == "ArrayChunk":
            self._chunks_left -= len(content)
        else:
            self._rest_left -= len(content)
        if kind == "Array":
            self._arrays.append(content)
        self._expect(parts, _INSIDE[kind])

    def _expect(self, names: list[str], kinds: tuple[str, ...]) -> None:
        """Add objects that must still come, each of one of these kinds."""
        for name in names:
            if name in self._contents or name in self.missing:
                raise WireError("a reply that has one object in two places")
            self.missing[name] = kinds
        objects = len(self._contents) + len(self.missing)
        if objects > self._limit.objects:
            raise WireError(f"a reply of {objects} objects; it may have {self._limit.objects}")

    def assemble(self) -> Message:
        """The reply, if its arrays keep to the limit when all their chunks are in place."""
        size = sum(map(self._assembled_size, self._arrays))
        if size > self._limit.chunks:
            raise WireError(
                f"an array of {size} bytes in a reply that may have {self._limit.array}"
            )
        message = inflate_object_from_contents(self.root, self._contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = self.root
        return message

    def _assembled_size(self, array: bytes) -> int:
        """The bytes of all chunks of an array, each as often as the array repeats it."""
        _, chunks, _ = get_object_head_values_from_object_content(array)
        order = json.loads(get_object_body(array, Array))["arraychunk_ids"]
        return sum(len(self._contents[chunks[index]]) for index in order)


@contextmanager
def _at_most(most: int) -> Iterator[None]:
    """Refuse responses of the SuperLink to this thread that are longer."""
    before = _longest_response.set(most)
    try:
        yield
    finally:
        _longest_response.reset(before)


def _refuse_long(response: httpx.Response) -> None:
    """Look at the length of a response before it is read."""
    most, length = _longest_response.get(), int(response.headers.get("content-length", 0))
    if most is not None and length > most:
        raise WireError(f"an object of {length} bytes in a reply that has {most} left")
