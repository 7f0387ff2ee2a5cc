"""From pictures as fedgh keeps them to what a published network expects."""

import torch
from torch import Tensor, nn


class Pixels(nn.Module):
    """The usual start of a network for pictures: from [-1, 1] to its own size and scale.

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
        """The numbers, also for who reads about an exported model."""
        mean, std = (self.get_buffer(name).flatten().tolist() for name in ("mean", "std"))
        return f"size={self.size}, mean={mean}, std={std}"

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 1 or channels, h, w] -> [batch, channels, size, size]."""
        if self.size is not None:
            x = nn.functional.interpolate(
                x, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        out: Tensor = ((x + 1) / 2 - self.get_buffer("mean")) / self.get_buffer("std")
        return out
