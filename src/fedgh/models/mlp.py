"""Small networks for inputs of any shape: tables, embeddings, tiny images, quick tries."""

from fractions import Fraction

from torch import Size, nn

from fedgh.models.width import FULL, units


def mlp(shape: tuple[int, ...], rep_dim: int, *, width: Fraction = FULL) -> nn.Sequential:
    """One hidden layer of 64."""
    hidden = units(width, 64)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(Size(shape).numel(), hidden),
        nn.ReLU(),
        nn.Linear(hidden, rep_dim),
        nn.ReLU(),
    )


def perceptron(shape: tuple[int, ...], rep_dim: int) -> nn.Sequential:
    """No hidden layer: the representation is one linear map and a ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(Size(shape).numel(), rep_dim), nn.ReLU())
