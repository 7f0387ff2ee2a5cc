"""Imports of Flower's private names, and a limit on the size of replies.

A reply consists of objects that refer to one another. Flower assembles it without checking its
size: an array that refers to one chunk of 5 MiB a thousand times takes 5 GB. `Inbox` requests the
objects one by one, reads no object that is longer than the rest of the limit, and computes the
assembled size before Flower assembles the reply. It does not use the tree of objects that the
client has registered.

Two things are not limited here. The SuperLink stores uploads before the server can request them.
And Flower's own process assembles a message to a client before it calls the client app, so a
malicious server can exhaust the memory of that process.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

import httpx
import uvicorn.config
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import (
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest
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
from flwr.supercore import http_logging
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    NodeStatus,
    TaskType,
)
from flwr.supercore.control import ControlHttpClient
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
from flwr.supercore.logger import console_handler
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.superexec import run_superexec as superexec
from flwr.supercore.superexec.executor import (
    ExecutionSpec,
    Executor,
    LaunchResult,
    SubprocessExecutor,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedgh.errors import RunError, WireError

__all__ = [
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "PROTOBUF_MEDIA_TYPE",
    "SUPERLINK_NODE_ID",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "ActivateNodeRequest",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "ErrorCode",
    "ExecutionSpec",
    "GetNodesRequest",
    "GetNodesResponse",
    "HttpGrid",
    "InMemoryObjectStore",
    "Inbox",
    "LaunchResult",
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
    "SubprocessExecutor",
    "TaskIdentity",
    "TaskType",
    "connected_keys",
    "console_handler",
    "format_server_logs",
    "get_all_nested_objects",
    "get_object_tree",
    "inflate_object_from_contents",
    "iterate_object_tree",
    "message_to_proto",
    "remove_content_from_message",
    "run_clientapp",
    "run_superexec",
    "sign_message",
]

MAX_FRAME = 2**16
"""Maximum number of bytes that Flower adds to a reply; an honest reply has about 1,500."""

MAX_OBJECT_FRAME = 80
"""Maximum number of bytes that each object adds: its name, its index in an array, its header."""

MAX_FIXED_OBJECTS = 16
"""Maximum number of objects in a reply, not counting one for each MiB of its array.

Flower splits arrays into chunks of 5 MiB.
"""

_INSIDE = {
    "Message": ("RecordDict",),
    "RecordDict": ("ConfigRecord", "ArrayRecord"),
    "ConfigRecord": (),
    "ArrayRecord": ("Array",),
    "Array": ("ArrayChunk",),
    "ArrayChunk": (),
}
"""For each kind of object in a reply, the kinds of objects that it may refer to."""

_max_response: ContextVar[int | None] = ContextVar("max_response", default=None)


@dataclass(frozen=True)
class Limit:
    """The maximum size of a reply: bytes in its record, bytes in its array."""

    record: int
    array: int

    @property
    def objects(self) -> int:
        """Maximum number of objects."""
        return MAX_FIXED_OBJECTS + self.array // 2**20

    @property
    def chunks(self) -> int:
        """Maximum number of bytes of all chunks."""
        return self.array + MAX_OBJECT_FRAME * self.objects

    @property
    def rest(self) -> int:
        """Maximum number of bytes of all other objects."""
        return self.record + MAX_FRAME + MAX_OBJECT_FRAME * self.objects


class Inbox:
    """Receives the replies of one round, object by object and within a limit."""

    def __init__(self, grid: Grid) -> None:
        if not isinstance(grid, HttpGrid):
            raise RunError(f"fedgh runs on Flower's SuperLink, not on its {type(grid).__name__}")
        self._superlink = grid._runtime_client
        self._superlink._client.event_hooks = {"response": [_check_length]}
        self._node, self._run_id = grid.node, grid.run.run_id
        self._partial: dict[str, _PartialReply] = {}  # by the name of the message

    def pull(self, name: str, limit: Limit) -> Message | None:
        """Return the reply to a message, or None while objects of it have not arrived.

        Never wait: replies of other participants may be complete. Raise WireError if the reply
        exceeds the limit or has objects that no reply has, ObjectPullError if objects will never
        arrive, and any other error if the bytes are not a message.
        """
        if name not in self._partial:
            root = self._find(name, limit.rest)
            if root is None:
                return None
            self._partial[name] = _PartialReply(root, limit)
        reply = self._partial[name]
        try:
            if not self._fill(reply):
                return None
            message = reply.assemble()
        except (httpx.HTTPError, RunNotRunningException):  # the next call may succeed
            raise
        except Exception:
            self._drop(name)
            raise
        self._drop(name)
        return message

    def _find(self, name: str, max_bytes: int) -> str | None:
        """Return the name of the root object of the reply to a message, or None."""
        with _response_limit(max_bytes):
            response = self._superlink.PullMessages(PullAppMessagesRequest(message_ids=[name]))
        return response.messages_list[0].metadata.message_id if response.messages_list else None

    def _fill(self, reply: "_PartialReply") -> bool:
        """Fetch the objects that have arrived; return true if the reply is complete."""
        while reply.missing:
            name = next(iter(reply.missing))
            content = self._fetch(name, reply.room(name))
            if not content:
                return False
            reply.add(name, content)
        return True

    def _fetch(self, name: str, max_bytes: int) -> bytes:
        """Return the content of an object, or b"" if the client has not sent it yet."""
        request = PullObjectRequest(node=self._node, run_id=self._run_id, object_id=name)
        with _response_limit(max_bytes + MAX_OBJECT_FRAME):
            response = self._superlink.PullObject(request)
        if not response.object_found:
            raise ObjectPullError(name, "the SuperLink does not have it")
        return response.object_content

    def _drop(self, name: str) -> None:
        """Delete a reply, here and at the SuperLink."""
        root = self._partial.pop(name).root
        with suppress(httpx.HTTPError):  # not essential: it frees the SuperLink's memory sooner
            self._superlink.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(
                    node=self._node, run_id=self._run_id, message_object_id=root
                )
            )


class _PartialReply:
    """A reply of which some objects may not have arrived yet."""

    def __init__(self, root: str, limit: Limit) -> None:
        self.root = root
        self.missing: dict[str, tuple[str, ...]] = {root: ("Message",)}  # name -> allowed kinds
        self._limit = limit
        self._contents: dict[str, bytes] = {}
        self._arrays: list[bytes] = []
        self._chunks_left, self._rest_left = limit.chunks, limit.rest

    def room(self, name: str) -> int:
        """Return the maximum number of bytes of a missing object."""
        return self._chunks_left if "ArrayChunk" in self.missing[name] else self._rest_left

    def add(self, name: str, content: bytes) -> None:
        """Add a missing object; the objects that it refers to become missing.

        Raise WireError if it is too long or of a wrong kind.
        """
        room, kinds = self.room(name), self.missing.pop(name)
        if len(content) > room:
            raise WireError(
                f"an object of {len(content)} bytes in a reply that may have {room} more"
            )
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
        """Add objects to the missing ones, each of one of these kinds."""
        for name in names:
            if name in self._contents or name in self.missing:
                raise WireError("a reply that has one object in two places")
            self.missing[name] = kinds
        objects = len(self._contents) + len(self.missing)
        if objects > self._limit.objects:
            raise WireError(f"a reply of {objects} objects; it may have {self._limit.objects}")

    def assemble(self) -> Message:
        """Return the reply; raise WireError if its assembled arrays would exceed the limit."""
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
        """Return the bytes of all chunks of an array, each counted as often as the array has it."""
        _, chunks, _ = get_object_head_values_from_object_content(array)
        order = json.loads(get_object_body(array, Array))["arraychunk_ids"]
        return sum(len(self._contents[chunks[index]]) for index in order)


@contextmanager
def _response_limit(max_bytes: int) -> Iterator[None]:
    """Reject longer responses of the SuperLink to this thread with WireError."""
    before = _max_response.set(max_bytes)
    try:
        yield
    finally:
        _max_response.reset(before)


def _check_length(response: httpx.Response) -> None:
    """Raise WireError for a response that is too long, before it is read."""
    limit, length = _max_response.get(), int(response.headers.get("content-length", 0))
    if limit is not None and length > limit:
        raise WireError(f"an object of {length} bytes in a reply that may have {limit} more")


def run_superexec(address: str, executor: Executor) -> None:
    """Take the tasks of the SuperNode at an address, and start them with an executor of fedgh.

    Flower has no option for an executor of another package.
    """
    vars(superexec)["get_executor"] = lambda *_, **__: executor
    superexec.run_superexec(runtime_api_address=address, insecure=True)


def format_server_logs(formatter: type[logging.Formatter]) -> None:
    """Set the format of the HTTP servers of SuperLink and SuperNode, before they start."""
    http_logging.UTCFormatter = formatter  # type: ignore[assignment, misc]
    uvicorn.config.LOGGING_CONFIG["formatters"]["default"] = {"()": formatter}


def connected_keys(address: str, authority: bytes) -> set[bytes]:
    """Return the public keys of the nodes that are connected to the SuperLink at an address.

    Raise httpx.HTTPError if it does not answer. `authority` is the certificate that it is verified
    with.
    """
    superlink = ControlHttpClient.from_server_address(
        address, insecure=False, root_certificates=authority, interceptors=[]
    )
    try:
        nodes = superlink.ListNodes(ListNodesRequest()).nodes_info
    finally:
        superlink.close()
    return {bytes(node.public_key) for node in nodes if node.status == NodeStatus.ONLINE}
