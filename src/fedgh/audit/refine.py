"""Refinement of an image from a single sample's vector, by gradient descent through the network.

The descent starts from the linear estimate. It changes the image so that the target client's
network maps it to the vector that was sent, and so that the image stays smooth. Without smoothness
the result would be an image that only the network takes for the sample. Directions in which vectors
vary little have the same weight as the others.
"""

import torch
from torch import Tensor

from fedgh.audit.scene import Geometry, ImageNetwork

STEPS = 150
RATE = 0.02
RIDGE = 1e-3
"""Value added to the variances, in units of the mean variance."""


def refine(
    images: Tensor, vectors: Tensor, network: ImageNetwork, geometry: Geometry, smoothness: float
) -> Tensor:
    """Return images whose vectors fit better; `smoothness` is the weight of total variation."""
    weights = (geometry.variances + RIDGE * geometry.scale).rsqrt()
    refined = images.clone().requires_grad_()
    optimizer = torch.optim.Adam([refined], RATE)
    for _ in range(STEPS):
        difference = (network(refined).double() - vectors) @ geometry.basis * weights
        across, down = refined.diff(dim=-1), refined.diff(dim=-2)
        variation = across.abs().mean((1, 2, 3)) + down.abs().mean((1, 2, 3))
        loss = difference.square().mean(1) + smoothness * variation
        (refined.grad,) = torch.autograd.grad(loss.sum(), [refined])
        optimizer.step()
    return refined.detach().clamp(0, 1)
