"""Runs for tests of trained models: on images, on floats, and without training."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgh import config
from fedgh.core.types import Payload
from fedgh.data.sources import Source
from fedgh.engines.host import Blueprint
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from fedgh.training.experiment import Experiment, prepare
from fedgh.training.restore import Checkpoint
from tests.support.tiny import QUICK, a_run

CLASSES = ("cat", "dog", "owl")


def images(count: int, size: int = 8, channels: int = 1) -> Source:
    """Return uint8 images with a bright stripe at a position that depends on the class."""
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(count) % len(CLASSES)
    x = torch.randint(100, (count, channels, size, size), generator=rng)
    for label in range(len(CLASSES)):
        x[y == label, :, 2 * label] += 120
    return Source("stripes", x.to(torch.uint8), y, CLASSES)


def train(path: Path, source: Source, *overrides: str) -> RunFolder:
    """Train a run on a .npz file next to its folder."""
    file = path.with_suffix(".npz")
    np.savez(file, x=source.x.numpy(), y=np.array(CLASSES)[source.y.numpy()])
    own = ["data.name=npz", f"data.path={file}", "data.partition=iid", *overrides]
    return loop.run(prepare(config.load("demo", [*QUICK, *own])), path)


def copied(folder: Path, to: Path) -> Path:
    """Return a copy of the folder whose configuration names missing data."""
    shutil.copytree(folder, to)
    settings = to / "config.toml"
    settings.write_text(settings.read_text().replace(folder.name + ".npz", "gone.npz"))
    return to


def edit_json(file: Path, **changes: Any) -> None:
    """Change keys of a JSON file; remove those that are None."""
    table = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in table.items() if value is not None}))


class InitialStates:
    """Initial states in place of trained ones, with random batch statistics."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint

    def load(self, client: int, limit: int = 0) -> Payload:
        rng = torch.Generator().manual_seed(client)
        return {
            name: torch.rand(tensor.shape, generator=rng) + 0.5 if "running" in name else tensor
            for name, tensor in self.blueprint.make(client).state().items()
        }


def as_if_trained(experiment: Experiment, path: Path) -> TrainedFederation:
    """Return a run with initial models, without training: fast for networks of any size."""
    folder = a_run(
        path, experiment.config.to_toml(), experiment.identity(), experiment.clients(), {}
    )
    blueprint, clients = experiment.blueprint(), list(range(len(experiment.partition)))
    files: Any = InitialStates(blueprint)
    return TrainedFederation(folder, lambda: Checkpoint(experiment, blueprint, 1, clients, files))


class Branching(nn.Module):
    """A module whose control flow depends on values, which exporters cannot trace."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out if x.sum().item() > 0 else out + 1


def branching(shape: tuple[int, ...], rep_dim: int) -> nn.Module:
    size = torch.Size(shape).numel()
    return Branching(nn.Sequential(nn.Flatten(), nn.Linear(size, rep_dim)))
