import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.header import BLOCK, LinearSGD, linear_header, recur
from fedgh.core.rng import isolated, stream
from fedgh.core.types import Payload, Task
from tests.support.headers import by_autograd


def random_problem(
    seed: int, pairs: int, rep_dim: int, num_classes: int
) -> tuple[Payload, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    task = Task(num_classes, rep_dim, 1, 1, 0)
    x = torch.rand(pairs, rep_dim, generator=rng)
    y = torch.randint(num_classes, (pairs,), generator=rng, dtype=torch.int32)
    return linear_header(task, rng), x, y


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    num_classes=st.integers(2, 12),
    lr=st.sampled_from([0.01, 0.1]),
)
def test_steps_per_pair_equal_autograd(
    seed: int, sizes: list[int], num_classes: int, lr: float
) -> None:
    header, x, y = random_problem(seed, sum(sizes), 20, num_classes)
    fast = LinearSGD(header, lr)
    for part, labels in zip(x.split(sizes), y.split(sizes), strict=True):
        fast.step_each(part, labels)
    slow = by_autograd(header, list(zip(x.split(1), y.split(1), strict=True)), lr)
    assert_close(fast.state(), slow, atol=1e-5, rtol=0)


def test_steps_per_pair_equal_autograd_over_several_blocks() -> None:
    header, x, y = random_problem(1, 3 * BLOCK + 7, 50, 10)
    fast = LinearSGD(header, 0.01)
    fast.step_each(x, y)
    slow = by_autograd(header, list(zip(x.split(1), y.split(1), strict=True)), 0.01)
    assert_close(fast.state(), slow, atol=1e-5, rtol=0)


@pytest.mark.parametrize("offset", [-200, -110, -103.5, -102, -100, -95, -85, 0, 85, 95, 200])
def test_recurrence_is_accurate_where_exp_overflows_or_underflows(offset: float) -> None:
    target = torch.tensor([0.3, -0.2, 1.1]) + offset
    first = np.array([-2 / 3, 1 / 3, 1 / 3], np.float32)  # softmax(0, 0, 0), label 0
    logits = np.stack([np.zeros(3), target.numpy() + 30 * first]).astype(np.float32)
    pull = np.array([[0, 0], [30, 0]], np.float32)
    grad = np.zeros((2, 3), np.float32)
    recur(logits, pull, grad, [0, 1])
    expected = target.softmax(0) - torch.tensor([0.0, 1, 0])
    assert_close(torch.from_numpy(grad[1]), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_steps_with_a_huge_learning_rate_equal_autograd(scale: float) -> None:
    header, x, y = random_problem(4, BLOCK, 50, 5)
    fast = LinearSGD(header, 1.0)  # one step moves a logit by thousands
    fast.step_each(scale * x, y)
    batches = list(zip((scale * x).split(1), y.split(1), strict=True))
    assert_close(fast.state(), by_autograd(header, batches, 1.0), atol=1e-3, rtol=1e-4)


def test_steps_per_client_equal_autograd() -> None:
    header, x, y = random_problem(2, 60, 20, 7)
    sizes = [1, 9, 30, 20]
    fast = LinearSGD(header, 0.1)
    batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
    for part, labels in batches:
        fast.step_batch(part, labels)
    assert_close(fast.state(), by_autograd(header, batches, 0.1), atol=1e-5, rtol=0)


def test_two_steps_equal_those_computed_by_hand() -> None:
    zero = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    header = LinearSGD(zero, lr=0.5)
    header.step_each(torch.tensor([[2.0], [2.0]]), torch.tensor([1, 1]))
    # First pair: softmax(0, 0) = 1/2, so d = (1/2, -1/2), W = (-1/2, 1/2), b = (-1/4, 1/4).
    # Second: z = (-5/4, 5/4), p = 1/(1 + e^2.5) = 0.0758582, d = (p, -p).
    p = 0.07585818
    weight, bias = -0.5 - 0.5 * p * 2, -0.25 - 0.5 * p
    assert_close(header.state()["weight"], torch.tensor([[weight], [-weight]]))
    assert_close(header.state()["bias"], torch.tensor([bias, -bias]))
    assert zero["weight"].eq(0).all()


def test_reading_the_state_between_steps_does_not_change_the_result() -> None:
    header, x, y = random_problem(3, 40, 8, 4)
    once, often = LinearSGD(header, 0.05), LinearSGD(header, 0.05)
    once.step_each(x, y)
    for part, labels in zip(x.split(7), y.split(7), strict=True):
        often.step_each(part, labels)
        often.state()
    assert_close(once.state(), often.state(), atol=1e-6, rtol=0)


def test_initial_header_is_distributed_as_nn_linear() -> None:
    task = Task(num_classes=100, rep_dim=500, num_clients=1, rounds=1, seed=0)
    ours = linear_header(task, stream(0, "server"))
    bound = 500**-0.5
    assert ours["weight"].shape == (100, 500)
    assert ours["bias"].shape == (100,)
    with isolated(0, "oracle"):
        theirs = torch.nn.Linear(500, 100)
    for name, tensor in ours.items():
        assert tensor.abs().max() <= bound
        assert tensor.std().item() == pytest.approx(
            theirs.state_dict()[name].std().item(), rel=0.15
        )
