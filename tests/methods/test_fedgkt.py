"""FedGKT: losses by hand, each sample meets its own target, the server's training is kept."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh import config
from fedgh.core import wire
from fedgh.core.types import UNKNOWN_SAMPLES, Client, Payload, Recipient, Task, Upload, part
from fedgh.errors import WireError
from fedgh.limits import LimitError
from fedgh.methods.fedgkt import FedGKT
from fedgh.trust import FOREIGN
from tests.support.rounds import shapes_of, uploads_of
from tests.support.tiny import a_client, noisy, quick

TASK = Task(num_classes=2, rep_dim=1, num_clients=3, rounds=9, seed=0)
SMALL = FedGKT(hidden=4, server_epochs=2)


def start(method: FedGKT = SMALL, task: Task = TASK) -> Payload:
    return method.init_server(task, [], torch.Generator())


def said(client: int, representations: list[float], **changed: Tensor) -> Upload:
    r = torch.tensor(representations)[:, None]
    labels = torch.zeros(len(r), dtype=torch.int32)
    rows = {"representations": r, "logits": torch.cat([r, -r], dim=1), "labels": labels}
    return Upload(client, 0, rows | changed)


def test_distillation_by_hand() -> None:
    """Softened by 3, (3, 0) is (0.731059, 0.268941): KL = 0.110944, times 9."""
    found = FedGKT().distil(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 2))
    assert float(found) == pytest.approx(0.998497, abs=1e-6)


class Undecided(nn.Module):
    """Logits (0, 0) whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * self.weight


def undecided() -> Client:
    client = a_client(torch.ones(1, 2), torch.tensor([0]), Undecided(), rep_dim=1, num_classes=2)
    nn.init.zeros_(client.model.header.weight)
    nn.init.zeros_(client.model.header.bias)
    return client


@pytest.mark.parametrize(("alpha", "loss"), [(1.0, 1.691644), (0.5, 1.192396)])
def test_the_clients_loss_by_hand(alpha: float, loss: float) -> None:
    client = undecided()
    FedGKT(alpha=alpha).client_update(client, {"logits": torch.tensor([[3.0, 0.0]])})
    assert client.metrics["train_loss"] == pytest.approx(loss, abs=1e-6)
    FedGKT(alpha=alpha).client_update(client := undecided(), {})
    assert client.metrics["train_loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize(("alpha", "loss"), [(1.0, 1.691644), (0.5, 1.345070)])
def test_the_servers_loss_by_hand(alpha: float, loss: float) -> None:
    method = FedGKT(alpha=alpha, hidden=1, server_epochs=1)
    server = {name: torch.zeros_like(tensor) for name, tensor in start(method).items()}
    uploads = uploads_of([said(0, [1.0], logits=torch.tensor([[3.0, 0.0]]))], TASK)
    method.server_update(server, uploads)
    assert uploads.metrics["server_loss"] == pytest.approx(loss, abs=1e-6)


def test_each_sample_meets_its_own_target() -> None:
    """Shuffled into batches of one or two; the input of a sample says which it is."""
    x = torch.arange(6.0)[:, None].repeat(1, 2)
    targets = torch.stack([torch.arange(6.0), torch.zeros(6)], dim=1)
    client = a_client(x, torch.arange(6) % 2, num_classes=2, batch_size=1, lr=1e-12)
    rows = torch.tensor([4, 1, 3, 0])
    client.data = replace(client.data, train=replace(client.data.train, index=rows))
    met: list[float] = []
    heard: list[float] = []

    class Spy(FedGKT):
        def distil(self, teacher: Tensor, student: Tensor) -> Tensor:
            heard.extend(teacher[:, 0].tolist())
            return super().distil(teacher, student)

    def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
        if module.training:
            met.extend(inputs[0][:, 0].tolist())

    client.model.extractor.register_forward_pre_hook(note)
    Spy().client_update(client, {"logits": targets[rows]})
    assert sorted(heard) == [0.0, 1.0, 3.0, 4.0]
    assert heard == met
    assert heard != [4.0, 1.0, 3.0, 0.0]  # shuffled


def test_it_learns_labels_and_targets_of_the_right_samples() -> None:
    """One step of a batch, against the loss written out."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 6), torch.arange(8) % 3
    targets = torch.randn(8, 3)
    ours = a_client(x, y, batch_size=8, lr=0.1)
    plain = a_client(x, y, batch_size=8, lr=0.1)
    plain.model.load_state_dict(ours.model.state_dict())
    FedGKT(alpha=0.7).client_update(ours, {"logits": targets})
    logits = plain.model(x)
    p, q = (targets / 3).softmax(1), (logits / 3).log_softmax(1)
    kl = (p * (p.log() - q)).sum(1).mean()
    (cross_entropy(logits, y) + 0.7 * 9 * kl).backward()
    torch.optim.SGD(plain.model.parameters(), lr=0.1).step()
    assert_close(ours.model.state_dict(), plain.model.state_dict())


def test_the_upload_is_of_the_trained_network_without_augmentation_and_as_declared() -> None:
    torch.manual_seed(0)
    client = a_client(torch.randn(20, 6), torch.arange(20) % 3, noisy((6,), 4))
    up = FedGKT().client_update(client, {})
    (spec,) = FedGKT().upload_specs(shapes_of(client.task))
    wire.check(up, spec)
    client.model.eval()
    r = client.model.represent(client.data.train.x)
    assert_close(up["representations"], r.detach())
    assert_close(up["logits"], client.model.header(r).detach())
    assert up["labels"].tolist() == client.data.train.labels.tolist()
    assert up.keys() == {"representations", "logits", "labels"}


def test_bytes_of_cifar10() -> None:
    """4,800 samples of ten classes: 9.8 MB up, 0.19 MB down."""
    n, task = 4_800, Task(10, 500, num_clients=1, rounds=1, seed=0)
    client = a_client(torch.zeros(n, 2), torch.arange(n) % 10, rep_dim=500, num_classes=10)
    up = SMALL.client_update(client, {})
    server = SMALL.server_update(start(SMALL, task), uploads_of([Upload(0, 0, up)], task))
    assert wire.nbytes(up) == 9_811_200
    assert wire.nbytes(SMALL.broadcast(server, Recipient(0))) == 192_000


def test_the_server_goes_through_clients_in_order_and_through_their_samples_at_random() -> None:
    """Against Adam with amsgrad on the loss written out, two epochs in batches of two."""
    method = FedGKT(hidden=4, server_epochs=2, server_batch=2, alpha=0.5, server_lr=0.01)
    uploads = [said(0, [0.1, 0.2, 0.3]), said(2, [0.4])]
    before = start(method)
    after = method.server_update(before, uploads_of(uploads, TASK))
    network = method.network(TASK)
    network.load_state_dict(part(before, "network."))
    adam = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4, amsgrad=True)
    rng = uploads_of(uploads, TASK).stream("samples")
    for own in [upload.payload for _ in range(2) for upload in uploads]:
        for rows in torch.randperm(len(own["labels"]), generator=rng).split(2):
            out = network(own["representations"][rows])
            value = method.distil(own["logits"][rows], out)
            value += 0.5 * cross_entropy(out, own["labels"][rows].long())
            adam.zero_grad()
            value.backward()
            adam.step()
    assert_close(part(after, "network."), dict(network.state_dict()))
    expected = network.eval()(uploads[0].payload["representations"]).detach()
    assert_close(after["client0.logits"], expected)


def test_two_rounds_keep_the_optimizers_state() -> None:
    uploads = [said(0, [0.1, 0.2])]
    once = SMALL.server_update(start(), uploads_of(uploads, TASK))
    assert any(name.startswith("adam.max_exp_avg_sq") for name in once)
    twice = SMALL.server_update(once, uploads_of(uploads, TASK, round=2))
    without = {name: t for name, t in once.items() if not name.startswith("adam.")}
    other = SMALL.server_update(without, uploads_of(uploads, TASK, round=2))
    assert not twice["network.0.weight"].equal(other["network.0.weight"])
    assert float(twice["adam.step.0"]) == 4


def test_who_sat_out_gets_what_it_was_owed_and_a_newcomer_nothing() -> None:
    server = SMALL.server_update(start(), uploads_of([said(0, [0.1, 0.2]), said(1, [0.3])], TASK))
    later = SMALL.server_update(server, uploads_of([said(1, [0.5])], TASK, round=2))
    kept = SMALL.broadcast(later, Recipient(0, last_round=1))
    assert kept["logits"].equal(server["client0.logits"])
    assert SMALL.broadcast(later, Recipient(1, last_round=2))["logits"].shape == (1, 2)
    assert SMALL.broadcast(later, Recipient(2)) == {}
    assert SMALL.sendable(later).keys() == {"client0.logits", "client1.logits"}


def test_targets_of_another_number_of_samples_are_refused() -> None:
    client = a_client(torch.ones(5, 2), torch.zeros(5, dtype=torch.int64))
    before = client.state()
    with pytest.raises(WireError, match="logits of 4 samples, 5 are here"):
        FedGKT().client_update(client, {"logits": torch.zeros(4, 3)})
    assert all(client.state()[name].equal(before[name]) for name in before)


def test_the_most_samples_of_a_client_are_the_bound_of_its_messages() -> None:
    prepared = quick("method.name=fedgkt", "method.hidden=4")
    most = max(client.train for client in prepared.clients())
    assert prepared.task.max_samples == most
    (spec,) = prepared.config.method.upload_specs(shapes_of(prepared.task))
    assert spec["labels"].shape == (wire.Dim("samples", most),)
    private = quick("method.name=fedgkt", "data.name=private", "data.classes=a,b,c")
    assert private.task.max_samples == UNKNOWN_SAMPLES


def test_an_upload_without_samples_does_not_end_the_run() -> None:
    """The mean loss of no sample is not a number."""
    with pytest.raises(WireError, match="rows for each training sample, and there is none"):
        SMALL.up.check(said(0, []).payload)


@pytest.mark.parametrize("setting", ["method.name=fedgkt:hidden", "method.name=fedzkt:noise"])
def test_a_remote_party_cannot_ask_for_any_width(setting: str) -> None:
    method, _, key = setting.rpartition(":")
    table = config.load("demo", [method]).to_table()
    table["method"][key] = 10**6
    with pytest.raises(LimitError, match=rf"method\.{key} asks for 1000000, more than max-rep-dim"):
        config.parse(table, FOREIGN)
    config.parse(table)
