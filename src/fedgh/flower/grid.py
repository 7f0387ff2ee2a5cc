"""A federation in one process, with everything real but the network.

Messages are serialised as Flower does it and both apps run unchanged: to try a client app before
it meets others, and to test.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedgh.flower.bound import NodeConfig


@dataclass(frozen=True)
class Node:
    """A participant: its app, its settings, its public key."""

    app: ClientApp
    config: NodeConfig
    public_key: bytes


class LocalGrid(Grid):
    """Runs a client app when its reply is asked for, one at a time."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self._waiting: dict[str, Message] = {}
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.run_id = TaskIdentity.task_id = 1
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def set_run(self, run: Run) -> None:
        """Name the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The only run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """All nodes, with their keys."""
        return [NodeInfo(node_id=k, public_key=node.public_key) for k, node in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are asked for."""
        sent = [travelled(message) for message in messages]
        self._waiting.update((message.metadata.message_id, message) for message in sent)
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The next reply: replies come one by one, as from afar."""
        for name in message_ids:
            if name in self._waiting:
                return [self._deliver(self._waiting.pop(name))]
        return []

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002 - nobody is late here
    ) -> Iterable[Message]:
        """All replies."""
        return [m for name in self.push_messages(messages) for m in self.pull_messages([name])]

    def _deliver(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        node = self.nodes[node_id]
        context = Context(1, node_id, dict(node.config), RecordDict(), {})
        try:
            return travelled(node.app(message, context))
        except Exception as problem:  # what Flower does with an app that raises
            error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(problem))
            return travelled(Message(error, reply_to=message))


def travelled(message: Message) -> Message:
    """The message as it arrives: taken apart into bytes, and put together again."""
    name = message.object_id
    message.metadata.__dict__["_message_id"] = name
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    found = inflate_object_from_contents(name, contents)
    assert isinstance(found, Message)
    found.metadata.__dict__["_message_id"] = name
    return found
