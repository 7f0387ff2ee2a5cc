"""Groups of clients whose networks have the same tensors, so that their weights can be averaged."""

from collections.abc import Sequence

from fedgh.core.average import network_spec, network_state
from fedgh.core.types import Payload, SplitModel, Task, prefixed
from fedgh.errors import ConfigError


def group_numbers(models: Sequence[SplitModel]) -> list[int]:
    """Return the group of each architecture: equal names and shapes of tensors make one group."""
    specs = [network_spec(network_state(model)) for model in models]
    first = [specs.index(spec) for spec in specs]
    order = sorted(set(first))
    return [order.index(place) for place in first]


def group_prefix(group: int) -> str:
    """Return the prefix of a group's tensors in what the server holds."""
    return f"group{group}."


def states_by_group(models: Sequence[SplitModel]) -> Payload:
    """Return the state of the first network of each group, under the group's prefix."""
    found: Payload = {}
    for group, model in zip(group_numbers(models), models, strict=True):
        fresh = prefixed(group_prefix(group), network_state(model))
        found |= {name: tensor for name, tensor in fresh.items() if name not in found}
    return found


def check_one_architecture(
    method: str, task: Task, models: Sequence[SplitModel], part: str = ""
) -> None:
    """Raise ConfigError unless all clients' networks, or a part of them, have the same tensors."""
    what = f"the {part}s of models" if part else "whole models"
    shapes = [network_spec(network_state(model.get_submodule(part))) for model in models]
    differ = [k for k in range(task.num_clients) if shapes[k % len(shapes)] != shapes[0]]
    if differ:
        few = ", ".join(map(str, differ[:8])) + (", ..." if len(differ) > 8 else "")
        raise ConfigError(
            f"{method} averages {what}, so all clients need one architecture, but the "
            f"models of clients {few} differ from client 0's; give model.zoo one entry"
        )
