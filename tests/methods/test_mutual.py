"""FML and FedKD: losses by hand, gradients where they belong, factors that rebuild the update."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.losses import distill
from fedgh.core.types import Client, Upload
from fedgh.methods.fedkd import LEFT, RIGHT, FedKD, compress, expand
from fedgh.methods.fml import FML, mutual_loss
from fedgh.models import shared_model
from tests.tiny import a_client

NOISY = "tests.tiny:noisy"


def client(**local: float) -> Client:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=rng)
    made = a_client(x, torch.arange(60) % 3, **local)  # type: ignore[arg-type]
    made.round = 1
    return made


def test_kl_worked_by_hand() -> None:
    teacher = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # (3/4, 1/4), (1/2, 1/2)
    student = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    expected = (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)) / 2
    assert_close(distill(teacher, student), torch.tensor(expected))


def test_fml_losses_and_their_gradients() -> None:
    y = torch.tensor([0, 2, 1, 1])
    private, shared = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    alpha, beta = 0.3, 0.8
    total = mutual_loss(private, shared, y, alpha, beta)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()

    for_private = alpha * cross_entropy(private, y) + (1 - alpha) * kl(shared.detach(), private)
    for_shared = beta * cross_entropy(shared, y) + (1 - beta) * kl(private.detach(), shared)
    assert_close(total, for_private + for_shared)
    ours = torch.autograd.grad(total, [private, shared])
    assert_close(ours[0], torch.autograd.grad(for_private, private)[0])
    assert_close(ours[1], torch.autograd.grad(for_shared, shared)[0])


@pytest.mark.parametrize("method", [FML(shared=NOISY), FedKD(shared=NOISY)])
def test_both_models_learn_and_nothing_else_changes(method: FML | FedKD) -> None:
    each = client(lr=0.1)
    method.init_client(each)
    server = method.init_server(each.task, [], torch.Generator())
    before = each.state()
    up = method.client_update(each, method.broadcast(server, 0))
    wire.check(up, method.upload_spec(each.task, server))
    weights = {name for name in before if name.endswith(("weight", "bias"))}
    changed = {name for name in before if not each.state()[name].equal(before[name])}
    assert changed == weights
    start = network_state(shared_model(NOISY, each.task))
    if isinstance(method, FML):
        assert all(not up[name].equal(start[name]) for name in start if name.endswith("weight"))
    else:
        assert all(up[name].abs().sum() > 0 for name in up if name.endswith(LEFT))


def test_fml_without_mutual_learning_is_plain_training() -> None:
    from fedgh.core.local import sgd_epochs

    torch.manual_seed(0)
    each = client()
    torch.manual_seed(0)
    plain = client()
    method = FML(alpha=1.0, beta=1.0, shared="tests.tiny:mlp")
    method.client_update(each, method.init_server(each.task, [], torch.Generator()))
    sgd_epochs(plain, lambda x, y: cross_entropy(plain.model(x), y))
    assert_close(each.state(), plain.state())


def test_fedkd_loss_written_out() -> None:
    each = client()
    method = FedKD(shared="tests.tiny:mlp")
    method.init_client(each)
    mentee = shared_model("tests.tiny:mlp", each.task)
    x, y = each.data.train.x[:8], each.data.train.y[:8]
    total = method.loss(each, mentee, x, y)
    projection = each.modules["projection"].weight
    h_mentor, h_mentee = each.model.represent(x), mentee.represent(x)
    p, q = each.model(x), mentee(x)
    ce = cross_entropy(p, y) + cross_entropy(q, y)
    kl = distill(p, q) + distill(q, p)
    mse = ((h_mentor - h_mentee @ projection.T) ** 2).mean()  # type: ignore[operator]
    assert_close(total, ce + (kl + mse) / ce)
    # The weight 1 / (CE + CE) is a number, not something to learn.
    parameters = list(each.model.parameters())
    ours = torch.autograd.grad(total, parameters, retain_graph=True)
    theirs = torch.autograd.grad(ce + (kl + mse) / ce.item(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    rank=st.integers(1, 6),
    energy=st.floats(0.1, 1.0),
    seed=st.integers(0, 999),
)
def test_factors_rebuild_the_update_within_the_kept_energy(
    rows: int, columns: int, rank: int, energy: float, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, rank, generator=rng) @ torch.randn(rank, columns, generator=rng)
    vector = torch.randn(5, generator=rng)
    factors = compress({"w": matrix, "b": vector}, energy)
    rebuilt = expand(factors)
    assert rebuilt["b"].equal(vector)
    lost = (rebuilt["w"] - matrix).square().sum() / matrix.square().sum()
    assert lost <= 1 - energy + 1e-4
    kept = factors["w" + LEFT].shape[1]
    assert kept <= min(rows, columns)
    s = torch.linalg.svdvals(matrix.double()).square()
    if kept > 1:  # one vector fewer would not have been enough
        assert s[: kept - 1].sum() / s.sum() < energy + 1e-4


def test_an_update_of_nothing_costs_nothing_and_convolutions_are_matrices() -> None:
    factors = compress({"w": torch.zeros(4, 3, 5, 5), "b": torch.zeros(4)}, 0.95)
    assert factors["w" + LEFT].shape == (4, 0)
    assert factors["w" + RIGHT].shape == (0, 75)
    assert wire.nbytes(factors) == 4 * 4
    assert expand(factors)["w"].eq(0).all()
    assert wire.from_bytes(wire.to_bytes(factors)).keys() == factors.keys()


def test_the_energy_rises_from_start_to_end() -> None:
    method = FedKD(energy_start=0.9, energy_end=0.99)
    values = [method.energy(t, 10) for t in range(1, 11)]
    assert values[-1] == pytest.approx(0.99)
    assert values[0] == pytest.approx(0.909)
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert steps == pytest.approx([0.009] * 9)


def test_fedkd_adds_up_the_weighted_updates() -> None:
    each = client()
    method = FedKD(energy_start=1.0, energy_end=1.0, shared="tests.tiny:mlp")
    server = method.init_server(each.task, [], torch.Generator())
    shapes = network_state(shared_model("tests.tiny:mlp", each.task))
    updates = [{n: torch.randn_like(t) for n, t in shapes.items()} for _ in range(3)]
    weights = [1, 2, 5]
    uploads = [
        Upload(k, n, compress(u, 1.0))
        for k, (n, u) in enumerate(zip(weights, updates, strict=True))
    ]
    once = method.server_update(server, uploads)
    twice = method.server_update(once, uploads)
    for name in shapes:
        mean = sum(n * u[name] for n, u in zip(weights, updates, strict=True)) / 8
        assert_close(expand(method.broadcast(once, 0))[name], mean, atol=1e-5, rtol=1e-4)
        assert_close(expand(method.broadcast(twice, 0))[name], 2 * mean, atol=1e-5, rtol=1e-4)
    assert twice["clock"].tolist() == [2, each.task.rounds]
    assert "clock" not in method.broadcast(twice, 0)


def test_a_newcomer_to_fedkd_reaches_the_same_mentee_as_everybody() -> None:
    """With everything kept and no learning, the upload is nothing: all start from one mentee."""
    method = FedKD(energy_start=1.0, energy_end=1.0, shared="tests.tiny:mlp")
    each = client(lr=1e-12)
    method.init_client(each)
    server = method.init_server(each.task, [], torch.Generator())
    shapes = network_state(shared_model("tests.tiny:mlp", each.task))
    update = {n: torch.randn_like(t) for n, t in shapes.items()}
    server = method.server_update(server, [Upload(0, 1, compress(update, 1.0))])
    up = method.client_update(each, method.broadcast(server, 0))
    assert all(tensor.abs().sum() < 1e-5 for name, tensor in expand(up).items())
