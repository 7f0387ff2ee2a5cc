"""Stochastic gradient descent with PyTorch's fused kernel.

`torch.optim.SGD` computes the same numbers, but its first use imports the compiler of PyTorch: over
a second and 70 MB in every process.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.sgd import sgd


class SGD:
    """The optimizer of one training phase; its momentum begins at zero."""

    def __init__(
        self, parameters: Sequence[Parameter], lr: float, momentum: float, weight_decay: float
    ) -> None:
        self._parameters = parameters
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._velocities: dict[Parameter, Tensor | None] = dict.fromkeys(parameters)

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        changed = [parameter for parameter in self._parameters if parameter.grad is not None]
        velocities = [self._velocities[parameter] for parameter in changed]
        sgd(
            list(changed),
            [parameter.grad for parameter in changed if parameter.grad is not None],
            velocities if self._momentum else [],
            fused=True,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocities |= zip(changed, velocities, strict=True)
