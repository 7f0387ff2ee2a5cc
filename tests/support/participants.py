"""Clients with data and networks of their own."""

import torch
from torch import Tensor, nn

from fedgh import ClientSpec, Pixels

CLASSES = ("a", "b", "c")


def points(width: int, n: int = 90, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return points in separable clusters, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    return 3 * torch.eye(classes, width)[y] + torch.randn(n, width, generator=rng), y


def net(width: int, out: int = 8, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, out), nn.ReLU())


def pictures() -> tuple[Tensor, list[str]]:
    """Return dark and bright images, and their classes."""
    x = torch.randint(0, 100, (60, 3, 6, 6), generator=torch.Generator().manual_seed(0))
    names = ["a", "c"] * 30
    x[1::2] += 155
    return x.to(torch.uint8), names


def three() -> list[ClientSpec]:
    """Return three clients: tables of two widths and images, classifiers and extractors."""
    torch.manual_seed(5)
    conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    classifier = nn.Sequential(net(4), nn.Linear(8, 3))
    (x, y), (wide_x, wide_y) = points(4), points(6, seed=1)
    return [
        ClientSpec(classifier, (x, [CLASSES[label] for label in y]), name="north"),
        ClientSpec(net(6, 12), (wide_x, [CLASSES[label] for label in wide_y]), name="south"),
        ClientSpec(conv, pictures(), name="west", transform=Pixels(8)),
    ]
