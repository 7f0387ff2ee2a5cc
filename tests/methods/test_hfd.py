"""HFD: pairs by hand, mean inputs once, and a batch that batch normalisation can use."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.local import train
from fedgh.core.types import Client, Payload, Recipient, Task, Upload
from fedgh.errors import MethodError
from fedgh.methods.hfd import HFD
from fedgh.training import loop
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import a_client, noisy, quick

TASK = Task(num_classes=2, rep_dim=1, num_clients=4, rounds=9, seed=0, input_shape=(1,))


def start(method: HFD, task: Task = TASK) -> Payload:
    return method.init_server(task, [], torch.Generator())


def said(client: int, classes: list[int], inputs: list[float], output: float = 0.5) -> Upload:
    """An upload with a mean input of each class, or of none."""
    labels = torch.tensor(classes).int()
    rows = torch.tensor([[output, 1 - output]] * len(classes))
    shown = {"input.classes": labels[: len(inputs)], "input.means": torch.tensor(inputs)[:, None]}
    return Upload(client, 0, {"classes": labels, "means": rows, **shown})


def test_mean_inputs_and_targets_by_hand() -> None:
    """Inputs of class 0: {0, 2}, {4}, {7, 9}; their means are 1, 4 and 8."""
    method = HFD()
    uploads = []
    for number, xs in enumerate(([0.0, 2.0], [4.0], [7.0, 9.0])):
        x = torch.tensor(xs)[:, None]
        client = a_client(x, torch.zeros(len(xs), dtype=torch.int64), rep_dim=1, num_classes=2)
        client.task = TASK
        up = method.client_update(client, method.broadcast(start(method), Recipient(number)))
        uploads.append(Upload(number, 0, up))
    assert [u.payload["input.means"].tolist() for u in uploads] == [[[1.0]], [[4.0]], [[8.0]]]
    server = method.server_update(start(method), uploads_of(uploads, TASK))
    down = method.broadcast(server, Recipient(0, last_round=1))
    assert down["classes"].tolist() == [0]
    assert down["inputs"].tolist() == [[6.0]]
    expected = (uploads[1].payload["means"] + uploads[2].payload["means"]) / 2
    assert_close(down["means"], expected)
    assert down["wanted"].tolist() == [0]


class Ramp(nn.Module):
    """Logits (x ln 3 / 6, 0): at x = 6 the output is (0.75, 0.25)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(math.log(3) / 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * self.scale, 0 * x], dim=1)


def test_the_loss_of_a_pair_by_hand() -> None:
    x, y = torch.tensor([[0.0]]), torch.tensor([0])
    client = a_client(x, y, Ramp(), rep_dim=2, num_classes=2, lr=1e-12)
    nn.init.eye_(client.model.header.weight)
    nn.init.zeros_(client.model.header.bias)
    client.task = TASK
    down = {
        "classes": torch.tensor([0]).int(),
        "means": torch.tensor([[0.5, 0.5]]),
        "inputs": torch.tensor([[6.0]]),
        "wanted": torch.tensor([0]).int(),
    }
    HFD(gamma=1.0).client_update(client, down)
    assert client.metrics["train_loss"] == pytest.approx(math.log(2) + 0.836988, abs=1e-6)
    HFD(gamma=0.5).client_update(client, down)
    assert client.metrics["train_loss"] == pytest.approx(math.log(2) + 0.418494, abs=1e-6)


def test_inputs_are_sent_once_and_again_if_the_server_has_lost_them() -> None:
    method = HFD()
    client = a_client(torch.rand(12, 5), torch.arange(12) % 2, num_classes=3)
    (spec,) = method.upload_specs(shapes_of(client.task))
    server = start(method, client.task)
    first = method.client_update(client, method.broadcast(server, Recipient(0)))
    wire.check(first, spec)
    assert first["input.classes"].tolist() == [0, 1]
    x = client.data.train.x
    assert_close(first["input.means"], torch.stack([x[::2].mean(0), x[1::2].mean(0)]))
    after = method.server_update(server, uploads_of([Upload(0, 0, first)], client.task))
    second = method.client_update(client, method.broadcast(after, Recipient(0, last_round=1)))
    wire.check(second, spec)
    assert second["input.means"].shape == (0, 5)
    third = method.client_update(client, method.broadcast(server, Recipient(0, last_round=2)))
    assert third["input.means"].equal(first["input.means"])


def test_bytes_of_cifar10_with_two_classes() -> None:
    """Once 24,576 bytes of inputs, each round 80 of outputs; labels are 8 each."""
    x = torch.rand(4, 3, 32, 32)
    each = a_client(x, torch.tensor([3, 7, 3, 7]), num_classes=10)
    method = HFD()
    server = start(method, each.task)
    first = method.client_update(each, method.broadcast(server, Recipient(0)))
    server = method.server_update(server, uploads_of([Upload(0, 0, first)], each.task))
    later = method.client_update(each, method.broadcast(server, Recipient(0, last_round=1)))
    assert wire.nbytes(first) == 24_576 + 8 + 80 + 8
    assert wire.nbytes(later) == 80 + 8


def test_outputs_are_of_the_last_round_and_inputs_of_all_rounds() -> None:
    method = HFD()
    server = method.server_update(
        start(method), uploads_of([said(0, [0], [2.0], 0.9), said(1, [0], [4.0], 0.7)], TASK)
    )
    server = method.server_update(server, uploads_of([said(1, [0], [], 0.6)], TASK, round=2))
    down = method.broadcast(server, Recipient(2))  # a newcomer, in the third round
    assert down["inputs"].tolist() == [[3.0]]
    assert_close(down["means"], torch.tensor([[0.6, 0.4]]))
    assert down["wanted"].tolist() == [1]
    nobody_else = method.broadcast(server, Recipient(1, last_round=2))
    assert nobody_else["classes"].tolist() == []
    assert nobody_else["inputs"].shape == (0, 1)


def test_an_output_without_an_input_is_no_pair() -> None:
    method = HFD()
    sent = [said(0, [0, 1], [2.0])]  # shows class 0 alone
    server = method.server_update(start(method), uploads_of(sent, TASK))
    assert method.broadcast(server, Recipient(1))["classes"].tolist() == [0]


def test_inputs_that_are_sent_again_replace_the_first() -> None:
    method = HFD()
    server = method.server_update(start(method), uploads_of([said(0, [0], [2.0])], TASK))
    server = method.server_update(server, uploads_of([said(0, [0, 1], [3.0, 5.0])], TASK, 2))
    assert method.broadcast(server, Recipient(1))["inputs"].tolist() == [[3.0], [5.0]]


@pytest.mark.parametrize(("classes", "got"), [("all", [0, 1]), ("own", [1])])
def test_a_client_gets_pairs_of_all_classes_or_of_its_own(classes: str, got: list[int]) -> None:
    method = HFD(classes=classes)  # type: ignore[arg-type]
    server = method.server_update(start(method), uploads_of([said(0, [0, 1], [2.0, 3.0])], TASK))
    to = Recipient(1, torch.tensor([False, True]), last_round=1)
    assert method.broadcast(server, to)["classes"].tolist() == got
    assert method.broadcast(server, Recipient(2))["classes"].tolist() == [0, 1]  # a newcomer


def client(extractor: nn.Module | None = None) -> Client:
    rng = torch.Generator().manual_seed(0)
    made = a_client(
        torch.randn(40, 6, generator=rng),
        torch.arange(40) % 3,
        extractor,
        momentum=0.9,
        weight_decay=0.1,
    )
    made.round = 1
    return made


def test_without_pairs_it_is_plain_training() -> None:
    states = []
    for alone in (True, False):
        torch.manual_seed(0)
        each = client(noisy((6,), 4))
        torch.manual_seed(1)
        if alone:
            train(each, lambda x, y, each=each: cross_entropy(each.model(x), y))  # type: ignore[misc]
        else:
            method = HFD()
            method.client_update(each, method.broadcast(start(method, each.task), Recipient(0)))
        states.append(each.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_pairs_go_through_the_network_with_the_batch() -> None:
    """Batch normalisation sees a batch of 16 and 2 mean inputs, never mean inputs alone."""
    sizes: list[int] = []
    extractor = noisy((6,), 4)
    extractor.register_forward_pre_hook(
        lambda module, inputs: sizes.append(len(inputs[0])) if module.training else None
    )
    each = client(extractor)
    each.local = replace(each.local, batch_size=16)
    down = {
        "classes": torch.tensor([0, 2]).int(),
        "means": torch.full((2, 3), 1 / 3),
        "inputs": torch.zeros(2, 6),
        "wanted": torch.tensor([0]).int(),
    }
    HFD().client_update(each, down)
    assert sizes == [18, 18, 10]


def test_inputs_of_different_shapes_are_refused_before_anything_runs() -> None:
    secret = ["data.name=private", "data.classes=a,b,c", "method.name=hfd"]
    with pytest.raises(MethodError, match=r"hfd needs inputs of one shape \(data\.shape"):
        quick(*secret)
    quick(*secret, "data.shape=[5]")


def test_images_keep_their_pixels_in_order(tmp_path: Path) -> None:
    """Channels-last batches and flat rows: what is sent is the mean of the images as they are."""
    prepared = quick("method.name=hfd", "federation.rounds=2", "local.augment=flip,crop")
    method, each = prepared.config.method, prepared.blueprint().make(0)
    up = method.client_update(each, method.broadcast(prepared.initial_server(), Recipient(0)))
    data = each.data.train
    x = data.x[data.index].float() / 127.5 - 1
    for label, row in zip(up["input.classes"].tolist(), up["input.means"], strict=True):
        assert_close(row.view(data.x.shape[1:]), x[data.labels == label].mean(0))
    last = loop.run(prepared, tmp_path / "run").records()[-1]
    assert last.failed == last.rejected == []
