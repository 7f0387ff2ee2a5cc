"""Convert images of fedgh to the inputs that published networks expect."""

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """A transform that scales images in [-1, 1] to a network's size, mean and deviation.

    The defaults of `mean` and `std` are those of ImageNet, which most published weights expect.
    """

    def __init__(
        self,
        size: int | None = None,
        mean: tuple[float, ...] = (0.485, 0.456, 0.406),
        std: tuple[float, ...] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def extra_repr(self) -> str:
        """Return size, mean and std; exported models contain this text."""
        mean, std = (self.get_buffer(name).flatten().tolist() for name in ("mean", "std"))
        return f"size={self.size}, mean={mean}, std={std}"

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, 1 or channels, h, w] to [batch, channels, size, size]."""
        if self.size is not None:
            x = nn.functional.interpolate(
                x, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        out: Tensor = ((x + 1) / 2 - self.get_buffer("mean")) / self.get_buffer("std")
        return out
