"""FedMRL: the fused representation by hand, what trains, what is sent, what is evaluated."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.average import network_state
from fedgh.core.types import Client, SplitModel, Task, Upload
from fedgh.errors import MethodError
from fedgh.methods.fedmrl import FedMRL
from tests.support.rounds import recipient, shapes_of, uploads_of
from tests.support.tiny import a_client, quick

METHOD = FedMRL(shared="tests.support.tiny:noisy", shared_dim=2)


class Always(nn.Module):
    """Represents every input by the same vector."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.tensor([values], dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.values.expand(len(x), -1)


def by_hand() -> tuple[FedMRL, Client]:
    """g = (1), f = (2, 3), P = [[1, 0, 0], [0, 1, 1]]: z = (1, 5)."""
    method = FedMRL(shared_dim=1)
    each = a_client(torch.zeros(4, 1), torch.arange(4) % 2, Always(2, 3), rep_dim=2, num_classes=2)
    each.modules["projection"] = nn.Linear(3, 2)
    each.modules["shared"] = SplitModel(Always(1), nn.Linear(1, 2))
    projection = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    each.modules["projection"].load_state_dict({"weight": projection, "bias": torch.zeros(2)})
    for header in (each.model.header, each.modules["shared"].header):
        nn.init.zeros_(header.weight)  # type: ignore[arg-type, union-attr]
        nn.init.zeros_(header.bias)  # type: ignore[arg-type, union-attr]
    return method, each


def test_the_fused_representation_and_the_loss_worked_by_hand() -> None:
    method, each = by_hand()
    x, y = torch.zeros(1, 1), torch.tensor([0])
    assert method.fused(each, x).tolist() == [[1.0, 5.0]]
    assert_close(method.loss(each, x, y), torch.tensor(1.3862944))  # 2 ln 2


def test_the_shared_header_reads_the_first_numbers_and_the_private_one_all() -> None:
    method, each = by_hand()
    x, y = torch.zeros(1, 1), torch.tensor([0])
    each.modules["shared"].header.weight.data = torch.tensor([[3.0], [0.0]])  # type: ignore
    of_shared = math.log(1 + math.exp(-3))
    assert_close(method.loss(each, x, y), torch.tensor(of_shared + math.log(2)))
    each.model.header.weight.data = torch.tensor([[1.0, 2.0], [0.0, 10.0]])
    assert method.logits(each, x).tolist() == [[11.0, 50.0]]
    of_private = math.log(1 + math.exp(50 - 11))
    assert_close(method.loss(each, x, y), torch.tensor(of_shared + of_private))


def client(**local: Any) -> Client:
    rng = torch.Generator().manual_seed(1)
    made = a_client(torch.randn(60, 6, generator=rng), torch.arange(60) % 3, **local)
    made.round = 1
    METHOD.init_client(made)
    return made


def test_all_three_networks_train_and_the_shared_one_alone_is_sent() -> None:
    each = client(lr=0.1, momentum=0.9, weight_decay=1e-3)
    before = each.state()
    down = METHOD.init_server(each.task, [], torch.Generator())
    received = {name: tensor.clone() for name, tensor in down.items()}
    up = METHOD.client_update(each, down)
    (spec,) = METHOD.upload_specs(shapes_of(each.task))
    wire.check(up, spec)
    assert up["header.weight"].shape == (3, 2)
    assert_close(up, network_state(each.modules["shared"]))
    assert all(down[name].equal(tensor) for name, tensor in received.items())
    after = each.state()
    weights = {name for name in before if name.endswith(("weight", "bias"))}
    assert {name for name in weights if after[name].equal(before[name])} == set()


def test_the_mean_is_weighted_by_samples() -> None:
    ones = {"header.bias": torch.ones(2)}
    uploads = [Upload(0, 1, ones), Upload(1, 3, {"header.bias": 3 * torch.ones(2)})]
    assert METHOD.server_update(ones, uploads_of(uploads))["header.bias"].tolist() == [2.5, 2.5]
    assert METHOD.server_update(ones, uploads_of([])) is ones


def test_a_participant_starts_with_the_global_shared_network_and_keeps_its_projection() -> None:
    each = client(lr=1e-12)
    projection = each.modules["projection"].weight.clone()  # type: ignore[operator]
    start = METHOD.init_server(each.task, [], torch.Generator())
    sent = {name: tensor + 1 for name, tensor in start.items()}
    down = METHOD.broadcast(sent, recipient(0))
    up = METHOD.client_update(each, down)
    statistics = {name for name in up if "running" in name}
    assert_close(
        {name: up[name] for name in up.keys() - statistics},
        {name: sent[name] for name in sent.keys() - statistics},
    )
    assert_close(each.modules["projection"].weight, projection)


def test_a_client_is_evaluated_with_the_shared_network_that_it_trained() -> None:
    each = client(lr=0.1)
    METHOD.client_update(each, METHOD.init_server(each.task, [], torch.Generator()))
    x = each.data.test.x[:2]
    for network in (each.model, each.modules):
        network.eval()
    z = METHOD.fused(each, x)
    assert_close(METHOD.logits(each, x), each.model.header(z))
    each.modules["shared"].extractor[1].weight.data.zero_()  # type: ignore[index, union-attr]
    assert not torch.allclose(METHOD.logits(each, x), each.model.header(z))


def test_bytes_of_the_shared_network() -> None:
    """CNN-5 with 100 numbers, ten classes."""
    task = Task(10, 500, num_clients=2, rounds=9, seed=0, input_shape=(3, 32, 32))
    assert wire.nbytes(FedMRL().init_server(task, [], torch.Generator())) == 1_862_632


def test_a_shared_header_wider_than_the_representation_is_refused_before_anything_runs() -> None:
    settings = ["method.name=fedmrl", "method.shared=tests.support.tiny:mlp"]
    with pytest.raises(MethodError, match=r"shared_dim = 17 exceeds model\.rep_dim = 16"):
        quick(*settings, "method.shared_dim=17").initial_server()
    quick(*settings, "method.shared_dim=16").initial_server()
