"""The shared linear header, and SGD on it without autograd.

For softmax cross-entropy the gradient of the logits is d = softmax(z) - onehot(y), so a step on
one pair (r, y) is W <- W - lr * d r^T, b <- b - lr * d. Successive steps are a triangular
recurrence: within a block of pairs the logits of pair i under the weights left by pairs 0..i-1 are

    z_i = W r_i + b - lr * sum_{j<i} (r_i . r_j + 1) d_j

so one product R W^T and one Gram matrix R R^T serve the whole block. The result is that of one
step per pair; only the order of the additions differs.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.core import wire
from fedgh.core.types import Payload, Task

BLOCK = 128
"""Pairs per block: enough for matrix products to pay, few enough for the Gram matrix."""

TINY = 1e-30  # floats much smaller than this have few digits left

Matrix = NDArray[np.float32]


def linear_header(task: Task, rng: torch.Generator) -> Payload:
    """A header with random weights, distributed as torch's own nn.Linear draws them."""
    bound = task.rep_dim**-0.5
    return {
        "weight": torch.empty(task.num_classes, task.rep_dim).uniform_(
            -bound, bound, generator=rng
        ),
        "bias": torch.empty(task.num_classes).uniform_(-bound, bound, generator=rng),
    }


def header_spec(task: Task) -> wire.Spec:
    """A message with a header."""
    return {
        "weight": wire.Field(torch.float32, (task.num_classes, task.rep_dim)),
        "bias": wire.Field(torch.float32, (task.num_classes,)),
    }


class LinearSGD:
    """Train a copy of a header by plain SGD with cross-entropy."""

    def __init__(self, header: Payload, lr: float) -> None:
        self.lr = lr
        self._weight = header["weight"].clone()
        self._bias = header["bias"].clone()
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._num_waiting = 0

    def step_each(self, x: Tensor, y: Tensor) -> None:
        """One step per pair, in order. Pairs wait until a block is full or the state is asked."""
        self._waiting.append((x, y))
        self._num_waiting += len(y)
        if self._num_waiting >= BLOCK:
            self._flush()

    def step_batch(self, x: Tensor, y: Tensor) -> None:
        """One step on the mean loss of all these pairs."""
        grad = torch.softmax(x @ self._weight.T + self._bias, dim=1)
        grad[torch.arange(len(y)), y.long()] -= 1
        grad /= len(y)
        self._apply(grad, x)

    def state(self) -> Payload:
        """The header after all steps so far."""
        self._flush()
        return {"weight": self._weight.clone(), "bias": self._bias.clone()}

    def _flush(self) -> None:
        if not self._waiting:
            return
        x = torch.cat([x for x, _ in self._waiting])
        y = torch.cat([y for _, y in self._waiting]).long()
        self._waiting, self._num_waiting = [], 0
        for rows, labels in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
            self._block(rows, labels)

    def _block(self, x: Tensor, y: Tensor) -> None:
        logits = torch.addmm(self._bias, x, self._weight.T)
        logits -= logits.amax(1, keepdim=True)  # the same softmax, from small numbers
        gram = x @ x.T + 1  # the 1 is the bias: a feature that is always one
        pull = gram.mul_(self.lr).tril_(-1)  # of each pair on the later ones
        grad = torch.zeros_like(logits)
        recur(logits.numpy(), pull.numpy(), grad.numpy(), y.tolist())
        self._apply(grad, x)

    def _apply(self, grad: Tensor, x: Tensor) -> None:
        self._weight.addmm_(grad.T, x, alpha=-self.lr)
        self._bias.sub_(grad.sum(0), alpha=self.lr)


def recur(logits: Matrix, pull: Matrix, grad: Matrix, labels: Sequence[int]) -> None:
    """Fill `grad` row by row: softmax(logits - pull @ grad) - onehot(label).

    Rows of `grad` that are still to come are zero, and so are their weights. In numpy, because
    on rows this short a call of torch takes several times as long.
    """
    ones = np.ones(logits.shape[1], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for z, weights, d, label in zip(logits, pull, grad, labels, strict=True):
            np.subtract(z, weights.dot(grad), d)
            np.exp(d, d)
            total = d.dot(ones)
            if not TINY < total < inf:  # the pull was so strong that exp left its range
                d[:] = 0
                now = z - weights.dot(grad)
                np.exp(now - now.max(), d)
                total = d.dot(ones)
            np.divide(d, total, d)
            d[label] -= 1
