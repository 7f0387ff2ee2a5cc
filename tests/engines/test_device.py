"""Clients on a second device, simulated on a machine without a GPU.

`OtherDevice` simulates a GPU with PyTorch's device "meta". A tensor on this device keeps its values
in a CPU tensor, so that it can be computed with. As on a GPU, an operation fails if its tensors are
on different devices, or if it reads the values of a tensor on the device directly from main memory.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
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
from fedgh.engines.device import device_of_worker, find_device, processes_for
from fedgh.engines.host import ClientHost
from fedgh.errors import ConfigError
from fedgh.methods import METHODS
from fedgh.runs.checkpoint import ClientFiles
from fedgh.training import loop
from tests.support.states import states
from tests.support.tiny import quick, tiny_shared

pytestmark = pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")

OTHER_DEVICE = torch.device("meta")
BETWEEN_DEVICES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OtherDeviceTensor(Tensor):
    """A tensor on the simulated device."""

    cpu_values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "OtherDeviceTensor":
        tensor: OtherDeviceTensor = Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype, device=OTHER_DEVICE
        )
        tensor.cpu_values = values
        return tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class OtherDevice(TorchDispatchMode):
    """A context in which the simulated device is available."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU, and return its result on the device that PyTorch would use.

    Raise RuntimeError if the tensors are on two devices.
    """
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    simulated = [tensor for tensor in tensors if isinstance(tensor, OtherDeviceTensor)]
    if simulated and func not in BETWEEN_DEVICES:
        for tensor in tensors:  # scalars of the CPU are allowed, as on a real device
            if not isinstance(tensor, OtherDeviceTensor) and tensor.ndim:
                raise RuntimeError(f"{func}: tensors on two devices")
    requested = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    if requested:
        result_on_other = requested[0] == OTHER_DEVICE
    elif func is torch.ops.aten.copy_.default:
        result_on_other = isinstance(args[0], OtherDeviceTensor)
    else:
        result_on_other = bool(simulated)
    by_values = {id(tensor.cpu_values): tensor for tensor in simulated}

    def to_cpu(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return CPU
        return leaf.cpu_values if isinstance(leaf, OtherDeviceTensor) else leaf

    def to_other_device(leaf: object) -> object:
        if not result_on_other or not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in by_values:  # an operation in place returns the tensor that it changed
            return by_values[id(leaf)]
        return OtherDeviceTensor(leaf)

    return tree_map(to_other_device, func(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs)))


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # PyTorch fuses SGD only on listed devices; the simulated device counts as a GPU.
    optimizer = import_module("torch.optim.optimizer")
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
    # A parameter on the CPU cannot become one on the simulated device in place: replace it.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with OtherDevice():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


@pytest.mark.usefixtures("other_device")
def test_an_operation_between_two_devices_fails() -> None:
    on_cpu, on_other = torch.ones(2), torch.ones(2).to(OTHER_DEVICE)
    assert (on_other + on_other).device == OTHER_DEVICE
    assert (on_other + on_other).cpu().tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        on_cpu + on_other


@pytest.mark.usefixtures("other_device")
@pytest.mark.parametrize("name", METHODS)
def test_clients_of_every_method_give_the_same_replies_on_the_other_device(
    name: str, tmp_path: Path
) -> None:
    prepared = quick(
        f"method.name={name}",
        *tiny_shared(name),
        "model.extractors=tests.support.tiny:noisy",
        "local.augment=flip,crop,erase",
        "local.momentum=0.9",
        "local.clip=0.1",
    )
    replies = {}
    for device in (CPU, OTHER_DEVICE):
        host = ClientHost(replace(prepared.blueprint(), device=device), ClientFiles(tmp_path, 0))
        architecture = prepared.server_resources().architecture(0)
        to = Recipient(0, None, 0, *architecture)
        down = prepared.config.method.broadcast(prepared.initial_server(), to)
        replies[device] = [
            host.run(Job(0, round, wire.to_bytes(down), evaluate=True)) for round in (1, 2)
        ]
        client = host.clients[0]
        assert {p.device for p in client.model.parameters()} == {device}
        assert all(tensor.device == CPU for tensor in client.state().values())
        client.load(client.state())
        assert client.device == device
    for on_cpu, on_other in zip(replies[CPU], replies[OTHER_DEVICE], strict=True):
        assert on_cpu.error is None
        assert on_other.error is None
        assert on_other.up == on_cpu.up
        assert on_other.metrics == on_cpu.metrics


def test_a_missing_device_is_refused_before_the_run_starts() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(
        ConfigError, match=r"run\.device: torch finds no 'cuda' device on this machine"
    ):
        quick("run.device=cuda")
    with pytest.raises(ConfigError, match=r"run\.device: should be 'cpu', 'cuda', 'mps' or 'auto'"):
        quick("run.device=gpu")


@pytest.mark.parametrize(
    ("cuda", "mps", "best"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_selects_the_fastest_available_device(
    cuda: bool, mps: bool, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert find_device("auto") == torch.device(best)
    assert find_device("cpu") == CPU


def test_server_and_workers_compute_deterministically_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blueprint = replace(quick().blueprint(), device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    server = partial(find_device, "cuda")
    worker = partial(ClientHost, blueprint, ClientFiles(tmp_path, 0))
    for start in (server, worker):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
        find_device("cpu")
        assert not torch.backends.cudnn.deterministic
        start()
        assert torch.backends.cudnn.deterministic


def test_gpus_are_assigned_to_workers_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cuda = torch.device("cuda")
    assert [device_of_worker(cuda, worker).index for worker in range(3)] == [0, 1, 0]
    assert [processes_for(torch.device(name), 8) for name in ("cuda", "mps", "cpu")] == [2, 1, 8]
    assert device_of_worker(CPU, 5) == CPU


def test_auto_gives_the_same_bits_as_cpu_on_a_machine_without_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgh.engines.device.torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("fedgh.engines.device.torch.backends.mps.is_available", lambda: False)
    auto = loop.run(quick("run.device=auto"), tmp_path / "auto")
    plain = loop.run(quick(), tmp_path / "cpu")
    assert states(auto) == states(plain)
