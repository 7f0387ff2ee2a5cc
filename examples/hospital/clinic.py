"""A clinic in the same federation, with other patients and another network."""

from hospital import patients
from torch import Tensor, nn

from fedgh import Task
from fedgh.flower import ClientSpec, NodeConfig, client_app


class Wide(nn.Module):
    """One wide layer with a gated linear unit."""

    def __init__(self, inputs: int, rep_dim: int) -> None:
        super().__init__()
        self.mix = nn.Linear(inputs, 2 * rep_dim)
        self.gate = nn.GLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs] to [batch, rep_dim]."""
        out: Tensor = self.gate(self.mix(x))
        return out


def make_client(task: Task, node_config: NodeConfig) -> ClientSpec:
    """Return the clinic's patients and network."""
    x, y = patients(int(node_config["client"]), task.num_clients)
    return ClientSpec(Wide(x.shape[1], task.rep_dim), (x, y))


app = client_app(make_client)
