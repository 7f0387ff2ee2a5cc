"""A generator of inputs: a network of the server that maps noise to images or vectors."""

from math import prod

import torch
from torch import Tensor, nn

from fedgh.core.rng import isolated
from fedgh.core.types import Task
from fedgh.errors import ConfigError

WIDTH = 128  # channels of the images' generator; half of them after the second enlargement
HIDDEN = 256  # width of the generator of inputs that are no images
SLOPE = 0.2  # of the leaky ReLUs


class InputGenerator(nn.Module):
    """A network from noise to inputs of a shape.

    Images [channels, height, width] come from the generator of data-free adversarial distillation
    (Fang, Song, Wang, Shen, Wang and Song, 2019): two enlargements by 2, and pixels between -1 and
    1. Other inputs come from three linear layers, and have no bounds.
    """

    def __init__(self, noise: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.noise = noise
        self.layers = _images(noise, *shape) if len(shape) == 3 else _vectors(noise, shape)

    def forward(self, count: int, rng: torch.Generator) -> Tensor:
        """Return as many inputs, made of noise from N(0, I)."""
        noise = torch.randn(count, self.noise, generator=rng)
        out: Tensor = self.layers(noise.to(next(self.parameters()).device))
        return out


def input_generator(noise: int, task: Task) -> InputGenerator:
    """Return a generator of a task's inputs, with initial weights from the seed."""
    if not task.input_shape:
        raise ConfigError(
            "inputs are generated in one shape, which all clients need (data.shape, where data are "
            "private)"
        )
    with isolated(task.seed, "generator"):
        return InputGenerator(noise, task.input_shape)


def _images(noise: int, channels: int, height: int, width: int) -> nn.Sequential:
    if height % 4 or width % 4:
        raise ConfigError(f"images are generated in sizes divisible by 4, not {height}x{width}")
    small = (WIDTH, height // 4, width // 4)
    return nn.Sequential(
        nn.Linear(noise, prod(small)),
        nn.Unflatten(1, small),
        nn.BatchNorm2d(WIDTH),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        nn.BatchNorm2d(WIDTH),
        nn.LeakyReLU(SLOPE),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(WIDTH, WIDTH // 2, 3, padding=1),
        nn.BatchNorm2d(WIDTH // 2),
        nn.LeakyReLU(SLOPE),
        nn.Conv2d(WIDTH // 2, channels, 3, padding=1),
        nn.Tanh(),
    )


def _vectors(noise: int, shape: tuple[int, ...]) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(noise, HIDDEN),
        nn.BatchNorm1d(HIDDEN),
        nn.LeakyReLU(SLOPE),
        nn.Linear(HIDDEN, HIDDEN),
        nn.BatchNorm1d(HIDDEN),
        nn.LeakyReLU(SLOPE),
        nn.Linear(HIDDEN, prod(shape)),
        nn.Unflatten(1, shape),
    )
