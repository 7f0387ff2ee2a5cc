"""The server's training loop: continuation gives the same bits, and divergence is an error."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from fedgh.core.learn import Learner, learn, on_public
from fedgh.core.types import Examples, OptimizerName, Payload
from fedgh.core.uploads import Uploads
from tests.support.rounds import TASK, uploads_of

X, Y = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20.0)[:, None]


def fresh() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def steps(network: nn.Linear, count: int, moments: Payload | None = None, **how: float) -> Payload:
    return learn(
        uploads_of([]),
        [network],
        lambda: (network(X) - Y).square().mean(),
        count,
        lr=0.1,
        moments=moments,
        **how,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_learn_equals_torch_optimizers(name: OptimizerName) -> None:
    ours, plain = fresh(), fresh()
    learn(uploads_of([]), [ours], lambda: (ours(X) - Y).square().mean(), 5, lr=0.1, optimizer=name)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = kinds[name](plain.parameters(), lr=0.1, weight_decay=0.0)
    for _ in range(5):
        optimizer.zero_grad()
        (plain(X) - Y).square().mean().backward()
        optimizer.step()
    assert_close(dict(ours.state_dict()), dict(plain.state_dict()))


def test_training_continued_with_moments_equals_uninterrupted_training() -> None:
    uninterrupted, resumed, without_moments = fresh(), fresh(), fresh()
    steps(uninterrupted, 10)
    moments = {name: tensor.clone() for name, tensor in steps(resumed, 4).items()}
    steps(resumed, 6, moments)
    assert resumed.weight.equal(uninterrupted.weight)
    assert resumed.bias.equal(uninterrupted.bias)
    steps(without_moments, 4)
    steps(without_moments, 6)
    assert not without_moments.weight.equal(uninterrupted.weight)


def test_learn_does_not_modify_the_given_moments() -> None:
    network = fresh()
    moments = steps(network, 2)
    before = {name: tensor.clone() for name, tensor in moments.items()}
    steps(network, 2, moments)
    assert all(moments[name].equal(before[name]) for name in before)


def test_amsgrad_is_that_of_torch_and_its_moments_are_kept() -> None:
    ours, plain = fresh(), fresh()
    steps(ours, 5, steps(ours, 5, amsgrad=True), amsgrad=True)
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.1, amsgrad=True)
    for _ in range(10):
        optimizer.zero_grad()
        (plain(X) - Y).square().mean().backward()
        optimizer.step()
    assert_close(dict(ours.state_dict()), dict(plain.state_dict()))
    assert any(name.startswith("max_exp_avg_sq") for name in steps(ours, 1, amsgrad=True))


def test_two_networks_learn_in_turn_and_each_moves_by_its_own_loss() -> None:
    """By hand: a rises along d(ab)/da = b, then b falls along d(ab)/db = a."""
    a, b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for network, value in ((a, 1.0), (b, 2.0)):
        nn.init.constant_(network.weight, value)
    uploads, one = uploads_of([]), torch.ones(1, 1)
    up = Learner(uploads, [a], lr=0.1, optimizer="sgd")
    down = Learner(uploads, [b], lr=0.1, optimizer="sgd")
    up.step(-b(a(one)).sum())
    assert b.weight.grad is None
    assert_close(a.weight.item(), 1 + 0.1 * 2.0)
    down.step(b(a(one).detach()).sum())
    assert_close(b.weight.item(), 2 - 0.1 * 1.2)
    up.finish("rise")
    down.finish("fall")
    assert uploads.metrics == {"rise": pytest.approx(-2), "fall": pytest.approx(2.4)}
    assert not any(network.training for network in (a, b))


def test_diverged_training_raises() -> None:
    network = fresh()
    with pytest.raises(FloatingPointError, match="the server's training diverged"):
        learn(uploads_of([]), [network], lambda: network(X).sum() * torch.inf, 2, lr=0.1)


def test_cosine_schedule_lowers_the_rate_and_the_mean_loss_is_recorded() -> None:
    network, seen, uploads = fresh(), [], uploads_of([])
    before: list[Tensor] = []

    def loss() -> Tensor:
        before.append(network.weight.detach().clone())
        seen.append(float(len(before)))
        return network.weight.sum() + torch.tensor(seen[-1])

    learn(uploads, [network], loss, 4, lr=0.1, optimizer="sgd", schedule="cosine")
    moves = [float((a - b).abs().max()) for a, b in itertools.pairwise(before)]
    assert moves == pytest.approx([0.1, 0.1 * 0.853553, 0.05], rel=1e-3)
    assert "server_loss" in uploads.metrics
    assert not network.training


def test_server_streams_differ_by_name_and_round() -> None:
    draws = {
        (name, round): torch.rand(1, generator=uploads_of([], round=round).stream(name)).item()
        for name in ("a", "b")
        for round in (1, 2)
    }
    assert len(set(draws.values())) == 4
    again = torch.rand(1, generator=uploads_of([], round=2).stream("b")).item()
    assert again == draws["b", 2]


def test_a_loss_on_public_samples_sums_over_networks_and_knows_the_rows() -> None:
    """Rows are positions among the public samples, not in the tensor that holds them."""
    x = torch.arange(10.0)[:, None]
    public = Examples(x, torch.full((10,), -1), torch.tensor([9, 3, 5, 7]))
    seen: list[int] = []

    def loss(out: Tensor, rows: Tensor) -> Tensor:
        seen.extend(rows.tolist())
        return (out.flatten() * x[public.index[rows], 0]).sum()

    double = nn.Linear(1, 1, bias=False).requires_grad_(False)
    nn.init.constant_(double.weight, 2.0)
    uploads = Uploads([], TASK, 1, public_examples=public)
    draw = on_public(uploads, [nn.Identity(), double], 2, loss)
    squares = 81 + 9 + 25 + 49  # each output meets its own input
    assert float(draw() + draw()) == (1 + 2) * squares
    first, same, second, again = seen[:2], seen[2:4], seen[4:6], seen[6:]
    assert (first, second) == (same, again)
    assert sorted(first + second) == [0, 1, 2, 3]
