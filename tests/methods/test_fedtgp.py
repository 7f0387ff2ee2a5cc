"""FedTGP: margin and loss worked by hand, the server's step, what is sent to whom."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core.local import class_means
from fedgh.core.types import Client, Payload, Upload
from fedgh.methods.fedtgp import FedTGP, contrast
from tests.support.rounds import TASK, recipient, uploads_of
from tests.support.tiny import a_client


def sent(*classes: int, seed: int = 0) -> Payload:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes, dtype=torch.int32)
    return {"classes": labels, "means": torch.rand(len(classes), 3, generator=rng)}


def start(method: FedTGP) -> Payload:
    torch.manual_seed(0)  # of the layers; a run isolates the global generator
    return method.init_server(TASK, [], torch.Generator())


@pytest.mark.parametrize(
    ("method", "margin"),
    [
        (FedTGP(), 5.0),
        (FedTGP(margin_of="nearest"), 4.2426407),  # nearest neighbours: 1, 4.2426407 and 1
        (FedTGP(max_margin=2.0), 2.0),
    ],
)
def test_the_margin_worked_by_hand(method: FedTGP, margin: float) -> None:
    """Centres (0, 0), (3, 4) and (0, 1): the first is the plain mean of two clients' means."""
    means = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 3])
    assert method.margin(means, labels, 4) == pytest.approx(margin)


@pytest.mark.parametrize("method", [FedTGP(), FedTGP(margin_of="nearest")])
def test_one_class_has_no_margin(method: FedTGP) -> None:
    assert method.margin(torch.ones(2, 3), torch.tensor([1, 1]), 4) == 0


@pytest.mark.parametrize(
    ("margin", "expected", "gradient"),
    [
        (0.0, 4.0181499, None),
        (2.0, 6.0024757, [[0.5985164, 0.7980219], [0.0, -0.9975274]]),
    ],
)
def test_the_loss_worked_by_hand(
    margin: float, expected: float, gradient: list[list[float]] | None
) -> None:
    mean, label = torch.zeros(1, 2), torch.tensor([0])
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]], requires_grad=True)
    loss = contrast(mean, label, prototypes, margin)
    assert_close(loss, torch.tensor(expected))
    loss.backward()
    if gradient is not None:
        assert_close(prototypes.grad, torch.tensor(gradient))


def test_equal_distances_cost_ln_2_and_a_prototype_on_its_mean_has_a_finite_gradient() -> None:
    prototypes = torch.zeros(2, 2, requires_grad=True)
    loss = contrast(torch.zeros(1, 2), torch.tensor([1]), prototypes, 0.0)
    assert_close(loss, torch.tensor(math.log(2)))
    loss.backward()
    assert prototypes.grad is not None
    assert bool(prototypes.grad.isfinite().all())


def test_a_step_of_the_server_is_plain_sgd_on_all_pairs() -> None:
    method = FedTGP(server_epochs=1, server_batch=9, server_lr=0.5)
    server = start(method)
    uploads = [Upload(0, 0, sent(0, 1)), Upload(2, 0, sent(1, 3, seed=1))]
    after = method.server_update(server, uploads_of(uploads))
    net: dict[str, Tensor] = {
        name: tensor.clone().requires_grad_()
        for name, tensor in server.items()
        if name.startswith("net.")
    }
    hidden = (net["net.0.weight"] @ net["net.1.weight"].T + net["net.1.bias"]).relu()
    prototypes = hidden @ net["net.3.weight"].T + net["net.3.bias"]
    means = torch.cat([each.payload["means"] for each in uploads])
    labels = torch.tensor([0, 1, 1, 3])
    margin = method.margin(means, labels, 4)
    contrast(means, labels, prototypes, margin).backward()
    for name, tensor in net.items():
        assert tensor.grad is not None
        assert_close(after[name], tensor.detach() - 0.5 * tensor.grad)
    # Nobody sent class 2: it takes part as a negative, and is sent as the others are.
    assert not torch.allclose(after["means"][2], prototypes[2].detach())
    assert after["filled"].all()


def test_training_lowers_the_loss_and_continues_from_the_round_before() -> None:
    method = FedTGP(server_lr=0.05)
    server, losses = start(method), []
    for round in (1, 2, 3):
        uploads = uploads_of([Upload(0, 0, sent(0, 1, 2, 3))], round=round)
        server = method.server_update(server, uploads)
        losses.append(uploads.metrics["server_loss"])
    assert losses[0] > losses[1] > losses[2]


def test_every_participant_gets_all_prototypes_and_none_before_there_are_any() -> None:
    method = FedTGP(server_epochs=2)
    server = start(method)
    assert len(method.broadcast(server, recipient(0))["classes"]) == 0
    assert method.server_update(server, uploads_of([])) is server
    nothing = sent()  # a defence may leave out all class means of a client
    assert method.server_update(server, uploads_of([Upload(0, 0, nothing)])) is server
    server = method.server_update(server, uploads_of([Upload(0, 0, sent(1, 2))]))
    for to in (recipient(0, [1, 2], last_round=1), recipient(3)):  # one of them is new
        down = method.broadcast(server, to)
        assert down.keys() == {"classes", "means"}
        assert down["classes"].tolist() == [0, 1, 2, 3]
        assert down["means"].equal(server["means"])
    assert method.sendable(server).keys() == {"classes", "means"}  # the network stays here


def client(**local: float) -> Client:
    x = torch.tensor([[0.5], [2.0], [1.0]])
    made = a_client(x, torch.tensor([0, 1, 1]), nn.Identity(), rep_dim=1, num_classes=2, **local)
    made.round = 1
    return made


NONE = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 1)}
BOTH = {"classes": torch.tensor([0, 1], dtype=torch.int32), "means": torch.tensor([[1.0], [2.0]])}


@pytest.mark.parametrize(("down", "distance"), [(NONE, 0.0), (BOTH, (0.25 + 0.0 + 1.0) / 3)])
def test_the_clients_loss_adds_ten_times_the_mean_squared_distance(
    down: Payload, distance: float
) -> None:
    each = client(lr=1e-12)
    x, y = each.data.train.x, each.data.train.y
    expected = cross_entropy(each.model(x), y).item() + 10 * distance
    up = FedTGP().client_update(each, down)
    assert each.metrics["train_loss"] == pytest.approx(expected)
    assert up.keys() == {"classes", "means"}
    assert_close(up["means"], torch.tensor([[0.5], [1.5]]))


def test_class_means_are_those_of_the_trained_network() -> None:
    rng = torch.Generator().manual_seed(0)
    each = a_client(torch.randn(30, 5, generator=rng), torch.arange(30) % 3, lr=0.1)
    each.round = 1
    before = class_means(each)
    none = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 4)}
    up = FedTGP().client_update(each, none)
    assert_close(up, class_means(each))
    assert not torch.allclose(up["means"], before["means"])


def test_the_nearest_prototype_may_decide() -> None:
    each, x = client(lr=1e-12), torch.tensor([[0.9], [1.6]])
    method = FedTGP(predict="prototype")
    method.client_update(each, BOTH)
    assert method.logits(each, x).argmax(1).tolist() == [0, 1]
    FedTGP().client_update(each, BOTH)
    assert_close(FedTGP().logits(each, x), each.model(x))
