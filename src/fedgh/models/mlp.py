"""Small networks for inputs of any shape: tables, vectors, tiny images, quick tests."""

from fractions import Fraction

from torch import Size, nn

from fedgh.models.width import FULL, units


def mlp(shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL) -> nn.Sequential:
    """Return a network with one hidden layer of 64 units."""
    hidden = units(width, 64)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(Size(shape).numel(), hidden),
        nn.ReLU(),
        nn.Linear(hidden, rep_dim),
        nn.ReLU(),
    )


def perceptron(shape: tuple[int, ...], rep_dim: int) -> nn.Sequential:
    """Return a network without hidden layer: one linear map and a ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(Size(shape).numel(), rep_dim), nn.ReLU())
