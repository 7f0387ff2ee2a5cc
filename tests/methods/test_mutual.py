"""FML and FedKD: losses by hand, gradients, and low-rank updates."""

import itertools
import math
from dataclasses import replace

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
from fedgh.core.low_rank import LEFT, RIGHT, compress, expand
from fedgh.core.types import Client, Payload, SplitModel, Upload
from fedgh.methods import fedkd
from fedgh.methods.fedkd import FedKD
from fedgh.methods.fml import FML
from fedgh.models import shared_model
from tests.support.rounds import recipient, shapes_of, uploads_of
from tests.support.tiny import a_client

NOISY = "tests.support.tiny:noisy"


def client(**local: float) -> Client:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(60, 6, generator=rng)
    made = a_client(x, torch.arange(60) % 3, **local)  # type: ignore[arg-type]
    made.round = 1
    return made


def test_distillation_loss_equals_kl_computed_by_hand() -> None:
    teacher = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # (3/4, 1/4), (1/2, 1/2)
    student = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    expected = (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)) / 2
    assert_close(distill(teacher, student), torch.tensor(expected))


def test_fml_loss_and_gradients_equal_those_computed_by_hand() -> None:
    y = torch.tensor([0, 2, 1, 1])
    private, shared = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    alpha, beta = 0.3, 0.8
    total = FML(alpha=alpha, beta=beta).loss(private, shared, y)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()

    for_private = alpha * cross_entropy(private, y) + (1 - alpha) * kl(shared.detach(), private)
    for_shared = beta * cross_entropy(shared, y) + (1 - beta) * kl(private.detach(), shared)
    assert_close(total, for_private + for_shared)
    ours = torch.autograd.grad(total, [private, shared])
    assert_close(ours[0], torch.autograd.grad(for_private, private)[0])
    assert_close(ours[1], torch.autograd.grad(for_shared, shared)[0])


@pytest.mark.parametrize("method", [FML(shared=NOISY), FedKD(shared=NOISY)])
def test_both_networks_train_and_received_tensors_do_not_change(method: FML | FedKD) -> None:
    each = client(lr=0.1)
    method.init_client(each)
    server = method.init_server(each.task, [], torch.Generator())
    before = each.state()
    up = method.client_update(each, method.broadcast(server, recipient(0)))
    (spec,) = method.upload_specs(shapes_of(each.task))
    wire.check(up, spec)
    weights = {name for name in before if name.endswith(("weight", "bias"))}
    after = each.state()
    changed = {name for name in before if not after[name].equal(before[name])}
    assert changed == weights
    start = network_state(shared_model(NOISY, each.task))
    if isinstance(method, FML):
        assert all(not up[name].equal(start[name]) for name in start if name.endswith("weight"))
    else:
        assert all(up[name].abs().sum() > 0 for name in up if name.endswith(LEFT))


def test_fml_without_mutual_learning_is_plain_training_also_when_clipped() -> None:
    from fedgh.core.local import train

    torch.manual_seed(0)
    each = client(clip=0.1)
    torch.manual_seed(0)
    plain = client(clip=0.1)
    method = FML(alpha=1.0, beta=1.0, shared="tests.support.tiny:mlp")
    method.client_update(each, method.init_server(each.task, [], torch.Generator()))
    train(plain, lambda x, y: cross_entropy(plain.model(x), y))
    assert_close(each.state(), plain.state())


def test_fml_starts_from_the_downloaded_shared_network() -> None:
    each = client(lr=1e-12)
    method = FML(shared="tests.support.tiny:mlp")
    start = method.init_server(each.task, [], torch.Generator())
    sent = {name: tensor + 1 for name, tensor in start.items()}
    assert_close(method.client_update(each, sent), sent)


def test_alpha_weights_the_private_and_beta_the_shared_network() -> None:
    """With alpha = 1 the private network learns only from labels."""
    method = FML(alpha=1.0, beta=0.0, shared="tests.support.tiny:mlp")
    states = []
    for shift in (0.0, 5.0):
        torch.manual_seed(0)
        each = client()
        down = method.init_server(each.task, [], torch.Generator())
        down["header.bias"] = down["header.bias"] + torch.tensor([shift, 0.0, 0.0])
        method.client_update(each, down)
        states.append(each.state())
    assert_close(states[0], states[1])


def test_fedkd_loss_equals_its_formula() -> None:
    each = client()
    method = FedKD(shared="tests.support.tiny:mlp")
    method.init_client(each)
    mentee = shared_model("tests.support.tiny:mlp", each.task)
    x, y = each.data.train.x[:8], each.data.train.y[:8]
    total = method.loss(each, mentee, x, y)
    projection = each.modules["projection"].weight
    h_mentor, h_mentee = each.model.represent(x), mentee.represent(x)
    p, q = each.model(x), mentee(x)
    ce = cross_entropy(p, y) + cross_entropy(q, y)
    kl = distill(p, q) + distill(q, p)
    mse = ((h_mentor - h_mentee @ projection.T) ** 2).mean()  # type: ignore[operator]
    assert_close(total, ce + (kl + mse) / ce)
    # The weight 1 / (CE + CE) is a constant: no gradient flows through it.
    parameters = [
        *each.model.parameters(),
        *mentee.parameters(),
        *each.modules["projection"].parameters(),
    ]
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
def test_factors_reconstruct_the_update_with_the_configured_energy(
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
    if kept > 1:  # one vector fewer has too little energy
        assert s[: kept - 1].sum() / s.sum() < energy + 1e-4


def test_a_zero_update_has_rank_zero_and_convolutions_are_matrices() -> None:
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


def test_the_energy_is_that_of_squared_singular_values() -> None:
    """diag(3, 2, 1) has squares 9, 4, 1: two of them have 13/14 = 93% of the energy, one 64%."""
    for energy, rank in ((0.6, 1), (0.65, 2), (0.9, 2), (0.95, 3)):
        factors = compress({"w": torch.diag(torch.tensor([3.0, 2.0, 1.0]))}, energy)
        assert factors["w" + LEFT].shape == (3, rank)


def smallest_rank(matrix: Tensor, energy: float) -> int:
    squares = torch.linalg.svdvals(matrix.double()).square()
    return next(k for k in range(1, 99) if squares[:k].sum() >= energy * squares.sum())


@pytest.mark.parametrize("round", [1, 10])
def test_uploads_and_downloads_have_the_energy_of_their_round(
    round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "extractor.1.weight"
    method = FedKD(energy_start=0.3, energy_end=0.999, shared="tests.support.tiny:mlp")
    each = client(lr=0.5)
    each.task, each.round = replace(each.task, rounds=10), round
    method.init_client(each)
    sent: list[Tensor] = []

    def spy(update: Payload, energy: float) -> Payload:
        sent.append(update[name])
        return compress(update, energy)

    monkeypatch.setattr(fedkd, "compress", spy)
    up = method.client_update(each, {})
    server = method.init_server(each.task, [], torch.Generator())
    server = method.server_update(server, uploads_of([Upload(0, 1, up)], each.task, round))
    down = method.broadcast(server, recipient(0, last_round=round))
    energy = method.energy(round, 10)
    assert up[name + LEFT].shape[1] == smallest_rank(sent[0], energy)
    assert down[f"last.{name}{LEFT}"].shape[1] == smallest_rank(sent[1], energy)


def random_updates(each: Client, count: int) -> list[Payload]:
    shapes = network_state(shared_model("tests.support.tiny:mlp", each.task))
    return [{n: torch.randn_like(t) for n, t in shapes.items()} for _ in range(count)]


def test_fedkd_compresses_the_mean_of_each_round_and_stores_the_exact_sum() -> None:
    each = client()
    each.task = replace(each.task, num_clients=3)
    method = FedKD(energy_start=0.6, energy_end=0.6, shared="tests.support.tiny:mlp")
    server = method.init_server(each.task, [], torch.Generator())
    weights = [1, 2, 5]
    expected: Payload = {}
    for round in range(1, 4):
        updates = random_updates(each, 3)
        uploads = [
            Upload(k, n, compress(u, 1.0))
            for k, (n, u) in enumerate(zip(weights, updates, strict=True))
        ]
        server = method.server_update(server, uploads_of(uploads, each.task, round))
        for name in updates[0]:
            mean = sum(n * u[name] for n, u in zip(weights, updates, strict=True)) / 8
            kept = expand(compress({name: torch.as_tensor(mean)}, 0.6))[name]
            expected[name] = expected.get(name, torch.zeros(())) + kept
    for name, tensor in expected.items():
        assert_close(server[f"sum.{name}"], tensor, atol=1e-4, rtol=1e-4)
    assert server["updated"] == 3


def test_a_client_that_missed_a_round_of_fedkd_gets_the_sum_and_the_same_mentee() -> None:
    """Two clients that do not train: one takes part in every round, the other joins late."""
    method = FedKD(energy_start=0.6, energy_end=0.6, shared="tests.support.tiny:mlp")
    faithful, late = client(lr=1e-12), client(lr=1e-12)
    late.id = 1
    for each in (faithful, late):
        each.task = replace(each.task, num_clients=2, rounds=9)
        method.init_client(each)
    server = method.init_server(faithful.task, [], torch.Generator())
    assert method.broadcast(server, recipient(0)) == {}  # all clients make the initial mentee
    for number in range(1, 5):
        faithful.round = number
        down = method.broadcast(server, recipient(0, last_round=number - 1))
        assert all(name.startswith("last.") for name in down)
        method.client_update(faithful, down)
        (update,) = random_updates(faithful, 1)
        sent = uploads_of([Upload(0, 1, compress(update, 0.6))], faithful.task, number)
        server = method.server_update(server, sent)
    faithful.round = late.round = 5
    down = method.broadcast(server, recipient(1))
    assert all(name.startswith("sum.") for name in down)
    method.client_update(late, down)
    method.client_update(faithful, method.broadcast(server, recipient(0, last_round=4)))
    assert_close(late.memory, faithful.memory, atol=1e-4, rtol=1e-4)


def perfect(each: Client, mentee: SplitModel) -> tuple[Tensor, Tensor]:
    """Return a batch on which the cross-entropy of both networks is exactly zero."""
    x, y = each.data.train.x[:4], torch.zeros(4, dtype=torch.int64)
    for model in (each.model, mentee):
        model.header.weight.data.zero_()
        model.header.bias.data = torch.tensor([200.0, 0.0, 0.0])
    return x, y


def test_a_cross_entropy_of_zero_leaves_fedkds_loss_finite() -> None:
    each = client()
    method = FedKD(shared="tests.support.tiny:mlp")
    method.init_client(each)
    mentee = shared_model("tests.support.tiny:mlp", each.task)
    x, y = perfect(each, mentee)
    assert cross_entropy(each.model(x), y).item() == 0
    assert bool(method.loss(each, mentee, x, y).isfinite())


def test_fedkd_can_differentiate_the_weight_of_its_losses() -> None:
    each = client()
    method = FedKD(shared="tests.support.tiny:mlp", weight_constant=False)
    method.init_client(each)
    mentee = shared_model("tests.support.tiny:mlp", each.task)
    x, y = each.data.train.x[:8], each.data.train.y[:8]
    total = method.loss(each, mentee, x, y)
    h_mentor, h_mentee = each.model.represent(x), mentee.represent(x)
    p, q = each.model(x), mentee(x)
    ce = cross_entropy(p, y) + cross_entropy(q, y)
    mse = ((h_mentor - each.modules["projection"](h_mentee)) ** 2).mean()
    written_out = ce + (distill(p, q) + distill(q, p) + mse) / ce
    bias = each.model.header.bias
    ours, theirs = (
        torch.autograd.grad(v, bias, retain_graph=True)[0] for v in (total, written_out)
    )
    assert_close(ours, theirs)
    constant = FedKD(shared="tests.support.tiny:mlp").loss(each, mentee, x, y)
    assert not torch.allclose(torch.autograd.grad(constant, bias)[0], theirs)


def test_an_empty_or_discarded_round_adds_no_update_twice() -> None:
    """A client that trained in a round that did not count gets the sum, not its last update."""
    each = client()
    method = FedKD(shared="tests.support.tiny:mlp")
    task = replace(each.task, rounds=10)
    server = method.init_server(task, [], torch.Generator())
    (update,) = random_updates(each, 1)
    sent = [Upload(0, 1, compress(update, 1.0))]
    server = method.server_update(server, uploads_of(sent, task, 1))
    after_empty = method.server_update(server, uploads_of([], task, 2))
    assert after_empty is server
    for last_round, known in ((1, "last."), (2, "sum."), (0, "sum.")):
        down = method.broadcast(after_empty, recipient(0, last_round=last_round))
        assert all(name.startswith(known) for name in down)
    later = method.server_update(after_empty, uploads_of(sent, task, 3))
    assert later["updated"] == 3
