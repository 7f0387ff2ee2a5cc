"""Small parts for tests: networks that train in milliseconds, a client, an experiment."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgh import config
from fedgh.core.records import ClientInfo, Identity
from fedgh.core.types import Client, ClientData, Examples, LocalTraining, Payload, SplitModel, Task
from fedgh.methods import METHODS
from fedgh.models.width import FULL, units
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment
from fedgh.training.experiment import Experiment
from tests.support.families import PUBLIC


def mlp(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    """The smallest useful extractor."""
    size = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, rep_dim), nn.ReLU())


def noisy(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    """An extractor with state beside its weights (batch norm) and randomness (dropout)."""
    size = torch.Size(shape).numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, rep_dim), nn.BatchNorm1d(rep_dim), nn.Dropout(0.5), nn.ReLU()
    )


def deep(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    """An extractor of sixteen layers: with the largest valid weights its outputs are infinite."""
    size = torch.Size(shape).numel()
    layers = [nn.Linear(size if number == 0 else rep_dim, rep_dim) for number in range(16)]
    return nn.Sequential(nn.Flatten(), *layers)


def normed(shape: tuple[int, ...], rep_dim: int, width: Fraction = FULL) -> nn.Module:
    """An extractor of any width, with batch norm and two hidden layers."""
    size, first, second = torch.Size(shape).numel(), units(width, 12), units(width, 8)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, first),
        nn.BatchNorm1d(first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, rep_dim),
        nn.ReLU(),
    )


class Failing(nn.Module):
    """A network that fails in training, as a user's code may."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("out of [memory]")
        out: Tensor = self.inner(x)
        return out


def failing(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return Failing(mlp(shape, rep_dim))


class Infinite(nn.Module):
    """A network whose representations are infinite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + torch.inf
        return out


def infinite(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return Infinite(mlp(shape, rep_dim))


def wrong_width(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    return mlp(shape, rep_dim + 1)


def a_client(
    x: Tensor,
    y: Tensor,
    extractor: nn.Module | None = None,
    *,
    rep_dim: int = 4,
    num_classes: int = 3,
    **local: Any,
) -> Client:
    """Return a client that trains on x, y; its other splits have other samples."""
    other_x, other_y = x.flip(0) + 1, (y + 1) % num_classes
    splits = [Examples(x, y, torch.arange(len(y)))]
    splits += [Examples(other_x, other_y, torch.arange(n)) for n in (1, 2)]
    model = SplitModel(
        extractor or mlp(tuple(x.shape[1:]), rep_dim), nn.Linear(rep_dim, num_classes)
    )
    task = Task(num_classes, rep_dim, 1, rounds=1, seed=0, input_shape=tuple(x.shape[1:]))
    return Client(0, task, model, ClientData(*splits), LocalTraining(**local))


QUICK = [
    "federation.clients=5",
    "federation.rounds=3",
    "model.extractors=tests.support.tiny:mlp,tests.support.tiny:noisy",
    "model.rep_dim=16",
    "local.batch_size=64",
    "run.engine=serial",
]


def quick(*overrides: str) -> Experiment:
    """Return a federation on digits that runs in a second."""
    return experiment.prepare(config.load("demo", [*QUICK, *overrides]))


def tiny_shared(method: str, extractor: str = "noisy") -> list[str]:
    """Settings by which a method has a shared network of this module, and public data."""
    kind, words = METHODS[method], []
    if method == "fjord":
        words.append(f"method.widths=tests.support.tiny:{extractor}")
    if hasattr(kind, "shared"):
        words.append(f"method.shared=tests.support.tiny:{extractor}")
    if hasattr(kind, "shared_dim"):
        words.append("method.shared_dim=8")
    if kind().public_for != "none":
        words += PUBLIC
    return words


NOTHING = Identity(name="nothing", classes=[], fingerprint="")


def a_run(
    path: Path,
    config: str = "",
    identity: Identity | None = None,
    clients: list[ClientInfo] | None = None,
    state: Payload | None = None,
) -> RunFolder:
    """Return an unlocked run folder before its first round."""
    with RunFolder.create(path, config, identity or NOTHING, clients or [], state or {}) as run:
        return run


def numbers(run: RunFolder) -> list[dict[str, Any]]:
    """Return the records of a run without times and bytes on the wire."""
    return [
        {k: v for k, v in record.model_dump().items() if k not in ("seconds", "wire_bytes")}
        for record in run.records()
    ]
