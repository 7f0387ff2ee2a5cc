"""Small networks for inputs of any shape: tables, embeddings, tiny images, quick tries."""

from torch import Size, nn


def mlp(shape: tuple[int, ...], rep_dim: int) -> nn.Sequential:
    """One hidden layer of 64."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(Size(shape).numel(), 64),
        nn.ReLU(),
        nn.Linear(64, rep_dim),
        nn.ReLU(),
    )


def perceptron(shape: tuple[int, ...], rep_dim: int) -> nn.Sequential:
    """No hidden layer: the representation is one linear map and a ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(Size(shape).numel(), rep_dim), nn.ReLU())
