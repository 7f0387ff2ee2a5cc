from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.header import LinearSGD
from fedgh.core.rng import stream
from fedgh.core.types import Payload, Task, Upload
from fedgh.methods.fedgh import FedGH
from fedgh.methods.paper_bytes import paper_bytes
from tests.support.headers import by_autograd
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import a_client


def uploads(num_clients: int = 6, per_client: int = 3) -> list[Upload]:
    rng = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 8, generator=rng).relu() * 3
    out = []
    for client in range(num_clients):
        classes = torch.randperm(10, generator=rng)[:per_client].int()
        means = centres[classes] + torch.rand(per_client, 8, generator=rng)
        out.append(Upload(client, 5, {"classes": classes, "means": means}))
    return out


TASK = Task(num_classes=10, rep_dim=8, num_clients=6, rounds=1, seed=0)


def initial_header() -> Payload:
    return FedGH().init_server(TASK, [], stream(0, "server"))


def test_one_step_of_the_server_equals_a_computation_by_hand() -> None:
    server = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    sent = {"classes": torch.tensor([1], dtype=torch.int32), "means": torch.tensor([[2.0]])}
    out = FedGH(server_lr=0.5).server_update(server, uploads_of([Upload(0, 4, sent)]))
    # By hand: softmax(0, 0) = (1/2, 1/2), so the gradient of the logits is (+1/2, -1/2).
    assert_close(out["weight"], torch.tensor([[-0.5], [0.5]]))
    assert_close(out["bias"], torch.tensor([-0.25, 0.25]))
    assert server["weight"].eq(0).all()  # the given state is not changed


@pytest.mark.parametrize("batch", ["pair", "client"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_server_update_is_sgd_over_the_pairs_in_client_order(
    batch: Literal["pair", "client"], epochs: int
) -> None:
    """A pair is a class mean and its label; a step uses one pair or all pairs of a client."""
    out = FedGH(server_lr=0.05, server_batch=batch, server_epochs=epochs).server_update(
        initial_header(), uploads_of(uploads())
    )
    steps = [(u.payload["means"], u.payload["classes"]) for u in uploads()]
    if batch == "pair":
        steps = [pair for x, y in steps for pair in zip(x.split(1), y.split(1), strict=True)]
    assert_close(out, by_autograd(initial_header(), steps * epochs, 0.05), atol=1e-5, rtol=0)


def test_the_result_depends_on_the_order_of_clients() -> None:
    method = FedGH(server_lr=0.5)
    orders = uploads(), uploads()[::-1]
    a, b = (method.server_update(initial_header(), uploads_of(order)) for order in orders)
    assert not a["weight"].allclose(b["weight"])


def test_a_learning_rate_of_zero_does_not_change_the_header() -> None:
    before = initial_header()
    after = FedGH(server_lr=0.0).server_update(before, uploads_of(uploads()))
    assert all(after[name].equal(initial_header()[name]) for name in ("weight", "bias"))


@pytest.mark.parametrize("batch", ["pair", "client"])
def test_each_server_update_lowers_the_loss_on_the_pairs(
    batch: Literal["pair", "client"],
) -> None:
    x = torch.cat([u.payload["means"] for u in uploads()])
    y = torch.cat([u.payload["classes"] for u in uploads()]).long()

    def loss(header: Payload) -> float:
        return float(cross_entropy(x @ header["weight"].T + header["bias"], y))

    before, after = initial_header(), initial_header()
    for _ in range(5):
        after = FedGH(server_batch=batch).server_update(after, uploads_of(uploads()))
        assert not after["weight"].equal(before["weight"])
        assert loss(after) < loss(before)
        before = after


def test_uploads_are_processed_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server trains on a client's pairs before it reads the next client's upload."""
    log: list[str] = []
    step = LinearSGD.step_batch

    def logged(header: LinearSGD, x: Tensor, y: Tensor) -> None:
        log.append("step")
        step(header, x, y)

    def arriving() -> Iterator[Upload]:
        for upload in uploads(num_clients=3):
            log.append("upload")
            yield upload

    monkeypatch.setattr(LinearSGD, "step_batch", logged)
    FedGH(server_batch="client").server_update(initial_header(), uploads_of(arriving()))
    assert log == ["upload", "step"] * 3


def test_the_client_loads_the_global_header_and_trains_its_whole_network() -> None:
    x = torch.randn(30, 6)
    y = torch.arange(30) % 3
    client = a_client(x, y, lr=1e-12)  # training does not visibly change the header
    down = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    sent = {name: tensor.clone() for name, tensor in down.items()}
    FedGH().client_update(client, down)
    assert_close(dict(client.model.header.state_dict()), down)
    assert all(down[name].equal(sent[name]) for name in sent)

    client = a_client(x, y, lr=0.1)
    before = client.state()
    FedGH().client_update(client, down)
    changed = {name for name, tensor in client.state().items() if not tensor.equal(before[name])}
    assert changed == set(before)
    assert all(down[name].equal(sent[name]) for name in sent)


def test_only_classes_and_means_are_uploaded() -> None:
    x, y = torch.randn(30, 6), torch.tensor([0, 2] * 15)
    client = a_client(x, y)
    down = FedGH().init_server(client.task, [], stream(0, "server"))
    up = FedGH().client_update(client, down)
    assert set(up) == {"classes", "means"}
    (spec,) = FedGH().upload_specs(shapes_of(client.task))
    wire.check(up, spec)
    assert wire.nbytes(up) == 2 * 4 + 2 * 4 * 4  # two int32 labels, two means of four floats


@pytest.mark.parametrize(
    ("num_classes", "per_client", "paper"), [(10, 2, 24_008), (100, 10, 220_040)]
)
def test_bytes_equal_those_of_the_paper_plus_the_bias(
    num_classes: int, per_client: int, paper: int
) -> None:
    task = Task(num_classes, 500, 10, 1, 0)
    assert paper_bytes("fedgh", task, per_client) == paper
    up = per_client * 4 + per_client * 500 * 4  # labels and class means
    down = wire.nbytes(FedGH().init_server(task, [], stream(0, "server")))
    assert up + down == paper + num_classes * 4  # the paper does not count the header's bias
