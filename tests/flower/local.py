"""Federations in one process, for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedgh.flower import client
from fedgh.flower.grid import LocalGrid, Node
from fedgh.flower.keys import read_public_key, write_key_pair
from fedgh.flower.server import serve
from fedgh.runs.folder import RunFolder
from fedgh.training.experiment import Experiment
from tests.support.families import FAMILIES
from tests.support.states import client_states

FIRST_NODE = 1000
NETWORKS = ",".join(
    [*(f"tests.support.tiny:{name}" for name in ("mlp", "noisy", "failing", "infinite")), *FAMILIES]
)
"""Names of the tests' own code, which the clients allow."""


class UnreliableGrid(LocalGrid):
    """A grid that loses the replies of some clients in some rounds, after they have trained."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        super().__init__(nodes)
        self.lost: set[tuple[int, int]] = set()  # client, round
        self.delivered = 0
        self.break_after = 2**62  # deliveries before a KeyboardInterrupt

    def _reply(self, name: str) -> Message | None:
        result = super()._reply(name)
        return None if result is None or self._key(result) in self.lost else result

    def _deliver(self, message: Message, node_id: int) -> Message:
        if self.delivered == self.break_after:
            raise KeyboardInterrupt
        self.delivered += 1
        return super()._deliver(message, node_id)

    @staticmethod
    def _key(message: Message) -> tuple[int, int]:
        return message.metadata.src_node_id - FIRST_NODE, int(message.metadata.group_id)


class LocalFederation:
    """A federation in one process, with its experiment, keys and states in a folder."""

    def __init__(
        self,
        path: Path,
        experiment: Experiment,
        apps: Sequence[ClientApp] = (client.app,),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.clients = experiment.task.num_clients
        keys = path / "keys"
        keys.mkdir(parents=True)
        (path / "experiment.toml").write_text(experiment.config.to_toml())
        nodes = {}
        for k in range(self.clients):
            write_key_pair(path / f"{k}.key", keys / f"{k}.pub")
            node_config: dict[str, int | str] = {
                "client": k,
                "state": str(path / "states"),
                "allow": NETWORKS,
                "key": str(path / f"{k}.key"),
                "peers": str(keys),
                **(settings or {}),
            }
            key = read_public_key(keys / f"{k}.pub")
            nodes[FIRST_NODE + k] = Node(apps[k % len(apps)], node_config, key)
        self.grid = UnreliableGrid(nodes)

    def run(self, out: str = "run") -> RunFolder:
        """Run the server until the end of the run, and return the run folder."""
        settings = {
            "experiment": str(self.path / "experiment.toml"),
            "out": str(self.path / out),
            "participants": str(self.path / "keys"),
        }
        return serve(self.grid, 1, settings)

    def client_folder(self, k: int) -> Path:
        """Return the folder in which a client stores its states."""
        (result,) = (self.path / "states").glob(f"experiments/*/client-{k}")
        return result

    def states(self) -> dict[str, bytes]:
        """Return the last state of every client as bytes."""
        homes = (self.path / "states").glob("experiments/*/client-*")
        return {name: state for home in homes for name, state in client_states(home).items()}
