"""A better image from a single sample's vector, by gradient descent through the victim's network.

From the linear estimate on, the image is changed so that the network makes of it what was sent, and
so that it stays smooth: without that, images are found that only the network takes for the sample.
Directions in which vectors vary little count as much as the others.
"""

import torch
from torch import Tensor

from fedgh.audit.scene import Geometry, See

STEPS = 150
RATE = 0.02
RIDGE = 1e-3
"""Added to the spread, in units of the mean variance."""


def refine(images: Tensor, vectors: Tensor, see: See, geometry: Geometry, smooth: float) -> Tensor:
    """Images that fit the vectors better; `smooth` weighs their total variation."""
    weights = (geometry.variances + RIDGE * geometry.scale).rsqrt()
    found = images.clone().requires_grad_()
    optimizer = torch.optim.Adam([found], RATE)
    for _ in range(STEPS):
        off = ((see(found).double() - vectors) @ geometry.basis * weights).square().mean(1)
        rough = found.diff(dim=-1).abs().mean((1, 2, 3)) + found.diff(dim=-2).abs().mean((1, 2, 3))
        (found.grad,) = torch.autograd.grad((off + smooth * rough).sum(), [found])
        optimizer.step()
    return found.detach().clamp(0, 1)
