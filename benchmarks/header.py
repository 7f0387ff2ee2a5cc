"""Speed of the server's header training, with one step per pair of class mean and label."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.core.header import LinearSGD, linear_header
from fedgh.core.rng import stream
from fedgh.core.types import Payload, Task

if TYPE_CHECKING:
    from benchmarks.suite import Bench

WIDTH = 500
LR = 0.01
COMPARED = 2_000  # pairs for autograd, which is slow
REPETITIONS = 5
MILLION = 1_000_000


def header_training(bench: "Bench") -> Iterator[tuple[str, float]]:
    """Header training on one core: blocks of pairs, compared with one autograd step per pair"""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for num_classes in (10, 100):
            yield from _compare(num_classes)
        yield from _million(MILLION // 10 if bench.quick else MILLION)
    finally:
        torch.set_num_threads(threads)


def _compare(num_classes: int) -> Iterator[tuple[str, float]]:
    start, x, y = _problem(num_classes, 20 * COMPARED)
    blocked = autograd = 0.0
    for _ in range(REPETITIONS):  # alternating, so that a slow moment of the machine affects both
        blocked += _timed(lambda: _by_blocks(start, x, y)) / len(y)
        autograd += _timed(lambda: _by_autograd(start, x[:COMPARED], y[:COMPARED])) / COMPARED
    fast = _by_blocks(start, x[:COMPARED], y[:COMPARED])
    slow = _by_autograd(start, x[:COMPARED], y[:COMPARED])
    suffix = f"c{num_classes}"
    yield f"header_pairs_per_second_{suffix}", REPETITIONS / blocked
    yield f"header_autograd_pairs_per_second_{suffix}", REPETITIONS / autograd
    yield f"header_speedup_{suffix}", autograd / blocked
    yield f"header_difference_{suffix}", max(float((fast[k] - slow[k]).abs().max()) for k in fast)


def _million(pairs: int) -> Iterator[tuple[str, float]]:
    """Time uploads of 100 pairs that arrive one after the other, with 100 classes."""
    start, x, y = _problem(100, 10_000)
    seconds = _timed(lambda: [_by_blocks(start, x, y) for _ in range(pairs // len(y))])
    yield "million_pairs_seconds", seconds * MILLION / pairs


def _by_blocks(header: Payload, x: Tensor, y: Tensor) -> Payload:
    trained = LinearSGD(header, LR)
    size = len(header["bias"])  # the pairs of a client that has every class
    for pairs, labels in zip(x.split(size), y.split(size), strict=True):
        trained.step_each(pairs, labels)
    return trained.state()


def _by_autograd(header: Payload, x: Tensor, y: Tensor) -> Payload:
    layer = nn.Linear(x.shape[1], len(header["bias"]))
    layer.load_state_dict(header)
    optimizer = torch.optim.SGD(layer.parameters(), lr=LR)
    for pair, label in zip(x.split(1), y.split(1), strict=True):
        optimizer.zero_grad()
        cross_entropy(layer(pair), label).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in layer.state_dict().items()}


def _problem(num_classes: int, pairs: int) -> tuple[Payload, Tensor, Tensor]:
    """Return a header, and random pairs that are not negative, like outputs of a ReLU."""
    rng = stream(0, "bench-header")
    task = Task(num_classes, WIDTH, 1, 1, 0)
    x = torch.randn(pairs, WIDTH, generator=rng).relu_()
    return linear_header(task, rng), x, torch.randint(num_classes, (pairs,), generator=rng)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
