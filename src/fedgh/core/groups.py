"""Groups of clients whose networks have the same tensors, so that their weights can be averaged."""

from collections.abc import Sequence

from fedgh.core.average import network_spec, network_state
from fedgh.core.method import Method
from fedgh.core.types import Payload, SplitModel, Task, prefixed
from fedgh.errors import ConfigError


def group_numbers(models: Sequence[SplitModel]) -> list[int]:
    """Return the group number of each model; a group has equal tensor names and shapes."""
    specs = [network_spec(network_state(model)) for model in models]
    first = [specs.index(spec) for spec in specs]
    order = sorted(set(first))
    return [order.index(position) for position in first]


def group_prefix(group: int) -> str:
    """Return the prefix of a group's tensors in the server state."""
    return f"group{group}."


def states_by_group(models: Sequence[SplitModel]) -> Payload:
    """Return the state of the first network of each group, under the group's prefix."""
    states: Payload = {}
    for group, model in zip(group_numbers(models), models, strict=True):
        state = prefixed(group_prefix(group), network_state(model))
        states |= {name: tensor for name, tensor in state.items() if name not in states}
    return states


def check_same_part(method: Method, task: Task, models: Sequence[SplitModel]) -> None:
    """Raise ConfigError unless the clients' networks are alike where the method needs it."""
    if method.same_part == "none":
        return
    part = "extractor" if method.same_part == "extractor" else ""
    shapes = [network_spec(network_state(model.get_submodule(part))) for model in models]
    differ = [k for k in range(task.num_clients) if shapes[k % len(shapes)] != shapes[0]]
    if differ:
        listed = ", ".join(map(str, differ[:8])) + (", ..." if len(differ) > 8 else "")
        raise ConfigError(
            f"{method.name} needs the same {method.same_part} at all clients, but the "
            f"{method.same_part}s of clients {listed} differ from client 0's; give "
            "model.extractors one entry"
        )
