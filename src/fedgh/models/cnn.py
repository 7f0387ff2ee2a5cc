"""CNN-1 to CNN-5 of the FedGH paper: one structure in five sizes."""

from fractions import Fraction
from functools import partial

from torch import nn

from fedgh.errors import ConfigError
from fedgh.models.width import FULL, units


def cnn(
    shape: tuple[int, ...],
    rep_dim: int,
    *,
    conv2: int,
    fc1: int,
    conv1: int = 16,
    width: Fraction = FULL,
) -> nn.Sequential:
    """Return two 5x5 convolutions with pooling and two dense layers.

    The output of the last ReLU is the representation. The ReLU of a convolution comes after the
    pooling: values and gradients are the same, but it computes a quarter of the pixels.
    """
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise ConfigError(f"the CNNs take 32x32 images, but inputs have shape {shape}")
    conv1, conv2, fc1 = (units(width, count) for count in (conv1, conv2, fc1))
    return nn.Sequential(
        nn.Conv2d(shape[0], conv1, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(conv1, conv2, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(conv2 * 5 * 5, fc1),
        nn.ReLU(),
        nn.Linear(fc1, rep_dim),
        nn.ReLU(),
    )


CNN1 = partial(cnn, conv2=32, fc1=2000)
CNN2 = partial(cnn, conv2=16, fc1=2000)
CNN3 = partial(cnn, conv2=32, fc1=1000)
CNN4 = partial(cnn, conv2=32, fc1=800)
CNN5 = partial(cnn, conv2=32, fc1=500)
