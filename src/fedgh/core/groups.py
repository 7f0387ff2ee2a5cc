"""Groups of clients whose networks have the same tensors, so that their weights can be averaged."""

from collections.abc import Collection, Sequence

from fedgh.core.average import WeightedMean, network_spec, network_state
from fedgh.core.method import Method
from fedgh.core.types import Payload, SplitModel, Task, Upload, prefixed
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


class GroupMeans:
    """Running weighted means of uploaded networks, one for each group."""

    def __init__(self) -> None:
        self._means: dict[int, WeightedMean] = {}

    def add(self, upload: Upload, weight: float) -> None:
        """Add the network in an upload with this weight."""
        self._means.setdefault(upload.group, WeightedMean()).add(upload.payload, weight)

    def value(self, if_none: Payload) -> Payload:
        """Return the means under the groups' prefixes; the tensors of other groups are kept."""
        state = dict(if_none)
        for group, mean in self._means.items():
            state |= prefixed(group_prefix(group), mean.value(if_none={}))
        return state


def check_same_part(method: Method, task: Task, models: Sequence[SplitModel]) -> None:
    """Raise ConfigError unless the clients' networks are alike where the method needs it."""
    if method.same_part == "none":
        return
    part = "extractor" if method.same_part == "extractor" else ""
    used = models[: task.num_clients]
    shapes = [network_spec(network_state(model.get_submodule(part))) for model in used]
    differ = [number for number, shape in enumerate(shapes) if shape != shapes[0]]
    if differ:
        raise ConfigError(
            f"{method.name} needs the same {method.same_part} at all clients, but the "
            f"{method.same_part}s of {clients_with(differ, len(models), task)} differ from "
            "client 0's; give model.extractors one entry"
        )


def clients_with(entries: Collection[int], of: int, task: Task) -> str:
    """Return, as text, the clients that have one of these entries of `of` in model.extractors."""
    clients = [client for client in range(task.num_clients) if client % of in entries]
    shown = ", ".join(map(str, clients[:8])) + (", ..." if len(clients) > 8 else "")
    return f"client{'s' if len(clients) > 1 else ''} {shown}"
