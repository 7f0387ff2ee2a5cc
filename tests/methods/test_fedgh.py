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


def start() -> Payload:
    return FedGH().init_server(TASK, [], stream(0, "server"))


def test_server_trains_the_header_it_returns() -> None:
    server = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    sent = {"classes": torch.tensor([1], dtype=torch.int32), "means": torch.tensor([[2.0]])}
    out = FedGH(server_lr=0.5).server_update(server, uploads_of([Upload(0, 4, sent)]))
    # softmax(0, 0) = 1/2, so the logit gradient is (+1/2, -1/2): worked by hand
    assert_close(out["weight"], torch.tensor([[-0.5], [0.5]]))
    assert_close(out["bias"], torch.tensor([-0.25, 0.25]))
    assert server["weight"].eq(0).all()  # the given state is not changed


@pytest.mark.parametrize("batch", ["pair", "client"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_server_update_is_sgd_over_the_pairs_in_client_order(
    batch: Literal["pair", "client"], epochs: int
) -> None:
    out = FedGH(server_lr=0.05, server_batch=batch, server_epochs=epochs).server_update(
        start(), uploads_of(uploads())
    )
    steps = [(u.payload["means"], u.payload["classes"]) for u in uploads()]
    if batch == "pair":
        steps = [pair for x, y in steps for pair in zip(x.split(1), y.split(1), strict=True)]
    assert_close(out, by_autograd(start(), steps * epochs, 0.05), atol=1e-5, rtol=0)


def test_the_result_depends_on_the_order_of_clients() -> None:
    method = FedGH(server_lr=0.5)
    forward, backward = uploads(), uploads()[::-1]
    a, b = (method.server_update(start(), uploads_of(each)) for each in (forward, backward))
    assert not a["weight"].allclose(b["weight"])


def test_a_frozen_header_keeps_its_bits() -> None:
    before = start()
    after = FedGH(server_lr=0.0).server_update(before, uploads_of(uploads()))
    assert all(after[name].equal(start()[name]) for name in ("weight", "bias"))


@pytest.mark.parametrize("batch", ["pair", "client"])
def test_a_trained_header_changes_and_fits_the_pairs_better(
    batch: Literal["pair", "client"],
) -> None:
    x = torch.cat([u.payload["means"] for u in uploads()])
    y = torch.cat([u.payload["classes"] for u in uploads()]).long()

    def loss(header: Payload) -> float:
        return float(cross_entropy(x @ header["weight"].T + header["bias"], y))

    before, after = start(), start()
    for _ in range(5):
        after = FedGH(server_batch=batch).server_update(after, uploads_of(uploads()))
        assert not after["weight"].equal(before["weight"])
        assert loss(after) < loss(before)
        before = after


def test_uploads_are_processed_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of the first client are used before those of the second arrive."""
    log: list[str] = []
    step = LinearSGD.step_batch

    def logged(header: LinearSGD, x: Tensor, y: Tensor) -> None:
        log.append("step")
        step(header, x, y)

    def arriving() -> Iterator[Upload]:
        for upload in uploads(num_clients=3):
            log.append("in")
            yield upload

    monkeypatch.setattr(LinearSGD, "step_batch", logged)
    FedGH(server_batch="client").server_update(start(), uploads_of(arriving()))
    assert log == ["in", "step"] * 3


def test_the_client_takes_over_the_global_header_and_trains_the_whole_model() -> None:
    x = torch.randn(30, 6)
    y = torch.arange(30) % 3
    client = a_client(x, y, lr=1e-12)  # so small that training leaves the header where it was
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


@pytest.mark.parametrize(("num_classes", "local", "paper"), [(10, 2, 24_008), (100, 10, 220_040)])
def test_bytes_equal_those_of_the_paper_plus_the_bias(
    num_classes: int, local: int, paper: int
) -> None:
    task = Task(num_classes, 500, 10, 1, 0)
    assert paper_bytes("fedgh", task, local) == paper
    up = local * 4 + local * 500 * 4
    down = wire.nbytes(FedGH().init_server(task, [], stream(0, "server")))
    assert up + down == paper + num_classes * 4  # the paper leaves out the header's bias
