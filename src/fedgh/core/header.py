"""The shared linear header, and SGD on it without autograd.

For softmax cross-entropy the gradient with respect to the logits is d = softmax(z) - onehot(y). A
step on one pair (r, y) is therefore W <- W - lr * d r^T, b <- b - lr * d. Successive steps form a
triangular recurrence: within a block, the logits of pair i after the steps on pairs 0..i-1 are

    z_i = W r_i + b - lr * sum_{j<i} (r_i . r_j + 1) d_j

so a block needs one product R W^T and one Gram matrix R R^T. The result equals one step per pair;
only the order of the additions differs.
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
"""Pairs per block: enough for efficient matrix products, few enough for a small Gram matrix."""

MIN_EXP_SUM = 1e-30  # float32 numbers far below this lose precision

Matrix = NDArray[np.float32]


def linear_header(task: Task, rng: torch.Generator) -> Payload:
    """Return a header with random weights, distributed as those of torch's nn.Linear."""
    bound = task.rep_dim**-0.5
    return {
        "weight": torch.empty(task.num_classes, task.rep_dim).uniform_(
            -bound, bound, generator=rng
        ),
        "bias": torch.empty(task.num_classes).uniform_(-bound, bound, generator=rng),
    }


def header_spec(task: Task) -> wire.Spec:
    """Return the spec of a message with a header."""
    return {
        "weight": wire.Field(torch.float32, (task.num_classes, task.rep_dim)),
        "bias": wire.Field(torch.float32, (task.num_classes,)),
    }


class LinearSGD:
    """Plain SGD with cross-entropy on a copy of a header."""

    def __init__(self, header: Payload, lr: float) -> None:
        self.lr = lr
        self._weight = header["weight"].clone()
        self._bias = header["bias"].clone()
        self._queue: list[tuple[Tensor, Tensor]] = []
        self._num_queued = 0

    def step_each(self, x: Tensor, y: Tensor) -> None:
        """Take one step per pair, in order.

        Pairs are queued until a block is full or `state` is called.
        """
        self._queue.append((x, y))
        self._num_queued += len(y)
        if self._num_queued >= BLOCK:
            self._flush()

    def step_batch(self, x: Tensor, y: Tensor) -> None:
        """Take one step on the mean loss of all these pairs."""
        grad = torch.softmax(x @ self._weight.T + self._bias, dim=1)
        grad[torch.arange(len(y)), y.long()] -= 1
        grad /= len(y)
        self._apply(grad, x)

    def state(self) -> Payload:
        """Return the header after all steps so far."""
        self._flush()
        return {"weight": self._weight.clone(), "bias": self._bias.clone()}

    def _flush(self) -> None:
        if not self._queue:
            return
        x = torch.cat([x for x, _ in self._queue])
        y = torch.cat([y for _, y in self._queue]).long()
        self._queue, self._num_queued = [], 0
        for rows, labels in zip(x.split(BLOCK), y.split(BLOCK), strict=True):
            self._block(rows, labels)

    def _block(self, x: Tensor, y: Tensor) -> None:
        logits = torch.addmm(self._bias, x, self._weight.T)
        logits -= logits.amax(1, keepdim=True)  # leaves the softmax unchanged and avoids overflow
        gram = x @ x.T + 1  # the bias acts as a feature that is always 1
        pull = gram.mul_(self.lr).tril_(-1)  # effect of each pair on later pairs
        grad = torch.zeros_like(logits)
        recur(logits.numpy(), pull.numpy(), grad.numpy(), y.tolist())
        self._apply(grad, x)

    def _apply(self, grad: Tensor, x: Tensor) -> None:
        self._weight.addmm_(grad.T, x, alpha=-self.lr)
        self._bias.sub_(grad.sum(0), alpha=self.lr)


def recur(logits: Matrix, pull: Matrix, grad: Matrix, labels: Sequence[int]) -> None:
    """Fill `grad` row by row: softmax(logits - pull @ grad) - onehot(label).

    `grad` must be zero at first and `pull` strictly lower triangular: a row then depends on earlier
    rows only. numpy is several times as fast as torch on rows this short.
    """
    ones = np.ones(logits.shape[1], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for z, weights, d, label in zip(logits, pull, grad, labels, strict=True):
            np.subtract(z, weights.dot(grad), d)
            np.exp(d, d)
            total = d.dot(ones)
            if not MIN_EXP_SUM < total < inf:  # exp over- or underflowed
                d[:] = 0
                shifted = z - weights.dot(grad)
                np.exp(shifted - shifted.max(), d)
                total = d.dot(ones)
            np.divide(d, total, d)
            d[label] -= 1
