"""Clients on another device, on a machine that has none.

`Elsewhere` makes tensors of the "meta" device compute: each keeps its values in a tensor of the
CPU. As on a graphics card, an operation between the two devices fails, and so does any that reads
a tensor of the other device as if it were in main memory.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedgh.core import wire
from fedgh.core.types import CPU, Job, Recipient
from fedgh.engines.device import find_device, processes_for, share_of
from fedgh.engines.host import ClientHost
from fedgh.errors import ConfigError
from fedgh.methods import METHODS
from fedgh.runs.checkpoint import ClientFiles
from fedgh.training import loop
from tests.support.tiny import quick, states, tiny_shared

pytestmark = pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")

ELSEWHERE = torch.device("meta")
BETWEEN_DEVICES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Remote(Tensor):
    """A tensor of the other device."""

    values_here: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "Remote":
        remote: Remote = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=ELSEWHERE
        )
        remote.values_here = values
        return remote

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """While this is active, the other device is there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    remote = any(isinstance(tensor, Remote) for tensor in tensors)
    if remote and func not in BETWEEN_DEVICES:
        for tensor in tensors:  # a number may come from anywhere, as on a real device
            if not isinstance(tensor, Remote) and tensor.ndim:
                raise RuntimeError(f"{func}: tensors on two devices")
    wanted = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)]
    if wanted:
        remote = wanted[0] == ELSEWHERE
    elif func is torch.ops.aten.copy_.default:
        remote = isinstance(args[0], Remote)
    owner = {id(tensor.values_here): tensor for tensor in tensors if isinstance(tensor, Remote)}

    def inside(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return CPU
        return leaf.values_here if isinstance(leaf, Remote) else leaf

    def outside(leaf: object) -> object:
        if not remote or not isinstance(leaf, Tensor):
            return leaf
        return (
            owner[id(leaf)] if id(leaf) in owner else Remote(leaf)
        )  # the owner, if it was changed in place

    return tree_map(outside, func(*tree_map(inside, args), **tree_map(inside, kwargs)))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Where SGD may be fused; the other device pretends to be a graphics card.
    optimizer = import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with Elsewhere():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.mark.usefixtures("elsewhere")
def test_two_devices_do_not_mix() -> None:
    here, there = torch.ones(2), torch.ones(2).to(ELSEWHERE)
    assert (there + there).device == ELSEWHERE
    assert (there + there).cpu().tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        here + there


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_computes_where_its_client_is(name: str, tmp_path: Path) -> None:
    prepared = quick(
        f"method.name={name}",
        *tiny_shared(name),
        "model.extractors=tests.support.tiny:noisy",
        "local.augment=flip,crop,erase",
        "local.momentum=0.9",
        "local.clip=0.1",
    )
    replies = {}
    for device in (CPU, ELSEWHERE):
        host = ClientHost(replace(prepared.blueprint(), device=device), ClientFiles(tmp_path, 0))
        down = prepared.config.method.broadcast(prepared.initial_server(), Recipient(0))
        replies[device] = [
            host.run(Job(0, round, wire.to_bytes(down), evaluate=True)) for round in (1, 2)
        ]
        client = host.kept[0]
        assert {p.device for p in client.model.parameters()} == {device}
        assert all(tensor.device == CPU for tensor in client.state().values())
        client.load(client.state())
        assert client.device == device
    for here, there in zip(replies[CPU], replies[ELSEWHERE], strict=True):
        assert here.error is None
        assert there.error is None
        assert there.up == here.up
        assert there.metrics == here.metrics


def test_a_device_that_is_not_there_is_refused_before_anything_runs() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match=r"run\.device: torch finds no 'cuda' device here"):
        quick("run.device=cuda")
    with pytest.raises(ConfigError, match=r"run\.device: should be 'cpu', 'cuda', 'mps' or 'auto'"):
        quick("run.device=gpu")


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_the_best_device_is_found(
    cuda: bool, mps: bool, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert find_device("auto") == torch.device(best)
    assert find_device("cpu") == CPU


def test_graphics_cards_are_dealt_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    cuda = torch.device("cuda")
    assert [share_of(cuda, worker).index for worker in range(3)] == [0, 1, 0]
    assert [processes_for(torch.device(name), 8) for name in ("cuda", "mps", "cpu")] == [2, 1, 8]
    assert share_of(CPU, 5) == CPU


def test_auto_gives_the_same_bits_as_the_processor_where_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgh.engines.device.torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("fedgh.engines.device.torch.backends.mps.is_available", lambda: False)
    auto = loop.run(quick("run.device=auto"), tmp_path / "auto")
    plain = loop.run(quick(), tmp_path / "cpu")
    assert states(auto) == states(plain)
