"""A federation in one process: real messages and apps, but no network.

Messages are serialised as in Flower, and the server app and client apps run unchanged. Use it to
try a client app before it joins a federation, and in tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgh.flower._flwr import (
    SUPERLINK_NODE_ID,
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ErrorCode,
    GetNodesRequest,
    GetNodesResponse,
    HttpGrid,
    InMemoryObjectStore,
    NodeInfo,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushObjectRequest,
    PushObjectResponse,
    Run,
    RuntimeHttpClient,
    TaskIdentity,
    get_all_nested_objects,
    get_object_tree,
    inflate_object_from_contents,
    iterate_object_tree,
    message_to_proto,
    remove_content_from_message,
)
from fedgh.flower.bound import NodeConfig


@dataclass(frozen=True)
class Node:
    """A client's node: its app, its settings, its public key."""

    app: ClientApp
    config: NodeConfig
    public_key: bytes


class LocalGrid(HttpGrid):
    """Flower's grid with nodes in this process; an app runs when its reply is requested."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        super().__init__(token="none")
        self.nodes = dict(nodes)
        self.waiting: dict[str, int] = {}  # message without a reply -> its node
        self._objects = InMemoryObjectStore()
        self._client = _SuperLink(self)
        self.set_run(Run.create_empty(run_id=1))
        TaskIdentity.run_id = TaskIdentity.task_id = 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def _reply(self, name: str) -> Message | None:
        """Run the app of a message's node and return the reply; None if that is done already."""
        if name not in self.waiting:
            return None
        return self._deliver(self.collect(name), self.waiting.pop(name))

    def collect(self, name: str) -> Message:
        """Return a message as the node receives it: assembled from bytes."""
        tree = iterate_object_tree(self._objects.get_object_tree(name))
        contents = {part.object_id: self._objects.get(part.object_id) or b"" for part in tree}
        self._objects.delete(name)
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = name
        return message

    def _deliver(self, message: Message, node_id: int) -> Message:
        """Return the answer of a node's app."""
        node = self.nodes[node_id]
        context = Context(1, node_id, dict(node.config), RecordDict(), {})
        try:
            return node.app(message, context)
        except Exception as problem:  # as Flower does with an app that raises
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(problem))
            return Message(error, reply_to=message)


class _SuperLink(RuntimeHttpClient):
    """The part of a SuperLink that a grid uses, without a network."""

    def __init__(self, grid: LocalGrid) -> None:
        super().__init__("http://localhost", verify=False)
        self._grid = grid

    def GetNodes(self, request: GetNodesRequest) -> GetNodesResponse:  # noqa: ARG002
        """Return all nodes with their keys."""
        nodes = self._grid.nodes.items()
        return GetNodesResponse(
            nodes=[NodeInfo(node_id=k, public_key=node.public_key) for k, node in nodes]
        )

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:
        """Store messages until their replies are requested."""
        sent = {m.metadata.message_id: m.metadata.dst_node_id for m in request.messages_list}
        self._grid.waiting.update(sent)
        new = [self._grid._objects.preregister(1, tree) for tree in request.message_object_trees]
        return PushAppMessagesResponse(message_ids=sent, objects_to_push=chain(*new))

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:
        """Store an object of a message."""
        self._grid._objects.put(request.object_id, request.object_content)
        return PushObjectResponse(stored=True)

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        """Return the reply to a message without its content, which `PullObject` returns."""
        (name,) = request.message_ids
        reply = self._grid._reply(name)
        if reply is None:
            return PullAppMessagesResponse()
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        self._grid._objects.preregister(1, tree)
        for part, item in get_all_nested_objects(reply).items():
            self._grid._objects.put(part, item.deflate())
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[tree],
        )

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:
        """Return an object of a reply."""
        content = self._grid._objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=bool(content),
            object_content=content or b"",
        )

    def ConfirmMessageReceived(
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        """Delete a reply."""
        self._grid._objects.delete(request.message_object_id)
        return ConfirmMessageReceivedResponse()
