"""FD and FedProto against brute force; new clients, and classes with one owner."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core.types import Payload, Upload
from fedgh.methods.fd import FD, distillation
from fedgh.methods.fedproto import FedProto
from tests.support.rounds import TASK, recipient, uploads_of
from tests.support.tiny import a_client

HOLDINGS = {0: [0, 1], 1: [1, 2], 2: [0, 1, 3], 4: [1]}  # client 3 is not selected


def uploads(width: int) -> list[Upload]:
    rng = torch.Generator().manual_seed(0)
    out = []
    for client, classes in HOLDINGS.items():
        payload = {
            "classes": torch.tensor(classes, dtype=torch.int32),
            "means": torch.rand(len(classes), width, generator=rng),
            "counts": torch.randint(1, 50, (len(classes),), generator=rng, dtype=torch.int32),
        }
        out.append(Upload(client, 0, payload))
    return out


def rows_of(sent: list[Upload], label: int) -> dict[int, tuple[Tensor, int]]:
    """Return mean and count by client, of the clients that have this class."""
    found = {}
    for upload in sent:
        for i, each in enumerate(upload.payload["classes"].tolist()):
            if each == label:
                payload = upload.payload
                found[upload.client_id] = (payload["means"][i], int(payload["counts"][i]))
    return found


def test_fd_sends_the_mean_over_the_other_participants() -> None:
    sent = uploads(4)
    server = FD().server_update(FD().init_server(TASK, [], torch.Generator()), uploads_of(sent))
    for client, classes in HOLDINGS.items():
        down = FD().broadcast(server, recipient(client, classes))
        others = {
            label: [mean for owner, (mean, _) in rows_of(sent, label).items() if owner != client]
            for label in classes
        }
        expected = {label: torch.stack(rows).mean(0) for label, rows in others.items() if rows}
        assert down["classes"].tolist() == sorted(expected)
        for label, row in zip(down["classes"].tolist(), down["means"], strict=True):
            assert_close(row, expected[label])
    # Classes 2 and 3 have one owner each, so their owners receive no mean for them.
    assert FD().broadcast(server, recipient(1, HOLDINGS[1]))["classes"].tolist() == [1]
    assert FD().broadcast(server, recipient(2, HOLDINGS[2]))["classes"].tolist() == [0, 1]


@pytest.mark.parametrize("method", [FD(), FedProto()])
def test_a_new_client_receives_all_classes_until_its_first_upload(
    method: FD | FedProto,
) -> None:
    width = 4 if isinstance(method, FD) else 3
    server = method.init_server(TASK, [], torch.Generator())
    assert len(method.broadcast(server, recipient(0))["classes"]) == 0  # no upload yet
    server = method.server_update(server, uploads_of(uploads(width)))
    assert method.broadcast(server, recipient(3))["classes"].tolist() == [0, 1, 2, 3]
    shown: Payload = {
        "classes": torch.tensor([1], dtype=torch.int32),
        "means": torch.ones(1, width),
        "counts": torch.tensor([5], dtype=torch.int32),
    }
    server = method.server_update(server, uploads_of([*uploads(width), Upload(3, 0, shown)]))
    assert method.broadcast(server, recipient(3, [1]))["classes"].tolist() == [1]


def test_fd_remembers_classes_of_clients_but_means_of_the_last_round_only() -> None:
    start, all_uploads = FD().init_server(TASK, [], torch.Generator()), uploads(4)
    server = FD().server_update(start, uploads_of(all_uploads))
    server = FD().server_update(server, uploads_of(all_uploads[1:2]))  # client 1: classes 1 and 2
    down = FD().broadcast(
        server, recipient(0, HOLDINGS[0])
    )  # it was not selected; its classes are known
    assert down["classes"].tolist() == [1]
    assert_close(down["means"][0], all_uploads[1].payload["means"][0])
    only_itself = FD().broadcast(server, recipient(1, HOLDINGS[1]))
    assert len(only_itself["classes"]) == 0


def test_fedproto_weights_prototypes_by_counts() -> None:
    sent = uploads(3)
    start = FedProto().init_server(TASK, [], torch.Generator())
    server = FedProto().server_update(start, uploads_of(sent))
    for label in range(4):
        holders = rows_of(sent, label).values()
        total = sum(count for _, count in holders)
        expected = sum(mean * count for mean, count in holders) / total
        assert_close(server["means"][label], expected)
    down = FedProto().broadcast(server, recipient(2, HOLDINGS[2]))
    assert down["classes"].tolist() == HOLDINGS[2]
    assert_close(down["means"], server["means"][HOLDINGS[2]])


def test_fedproto_keeps_a_prototype_without_new_uploads() -> None:
    start = FedProto().init_server(TASK, [], torch.Generator())
    first = FedProto().server_update(start, uploads_of(uploads(3)))
    renewed = uploads(3)[1:2]  # classes 1 and 2
    second = FedProto().server_update(first, uploads_of(renewed))
    assert second["means"][[0, 3]].equal(first["means"][[0, 3]])
    assert_close(second["means"][[1, 2]], renewed[0].payload["means"])


def test_losses_equal_those_computed_by_hand() -> None:
    y = torch.tensor([0, 1, 2])
    filled = torch.tensor([True, True, False, False])
    targets = torch.tensor([[0.5, 0.5], [1.0, 0.0], [9.0, 9.0], [9.0, 9.0]])
    logits = torch.zeros(3, 2)
    # log softmax = -log 2 everywhere: each of two samples adds log 2, the third nothing
    assert_close(distillation(logits, y, targets, filled), torch.tensor(2 * 0.6931472 / 3))
    representation = torch.tensor([[1.5, 0.5], [1.0, 2.0], [7.0, 7.0]])
    # Squares 1, 0, 0 and 4, and nothing for the third sample, over six numbers.
    client = a_client(representation, y, nn.Identity(), rep_dim=2)
    loss = FedProto(lam=1.0).loss(client, representation, y, targets, filled)
    plain = cross_entropy(client.model(representation), y)
    assert_close(loss - plain, torch.tensor(5 / 6))


@pytest.mark.parametrize("method", [FD(gamma=5.0), FedProto(lam=5.0)])
def test_training_moves_a_client_towards_its_targets(method: FD | FedProto) -> None:
    x, y = torch.randn(60, 6), torch.arange(60) % 3
    width = 3 if isinstance(method, FD) else 4
    rows = torch.tensor([[0.2, 0.3, 0.5]] * 3) if isinstance(method, FD) else torch.ones(3, 4)
    targets = {"classes": torch.arange(3).int(), "means": rows}
    no_targets = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, width)}
    far = {}
    for name, down in (("targets", targets), ("no_targets", no_targets)):
        torch.manual_seed(0)
        client = a_client(x, y, epochs=20, lr=0.05)
        up = method.client_update(client, down)
        far[name] = float((up["means"] - rows).square().mean())
    assert far["targets"] < 0.5 * far["no_targets"]


def test_fd_uploads_mean_softmax_outputs() -> None:
    x, y = torch.randn(50, 6), torch.arange(50) % 2
    client = a_client(x, y)
    no_targets = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 3)}
    up = FD().client_update(client, no_targets)
    with torch.inference_mode():
        outputs = client.model(x).softmax(1)
    assert up["classes"].tolist() == [0, 1]
    for label in (0, 1):
        assert_close(up["means"][label], outputs[y == label].mean(0))
    assert_close(up["means"].sum(1), torch.ones(2))


def test_fedproto_uploads_counts() -> None:
    y = torch.tensor([0] * 7 + [2] * 5)
    client = a_client(torch.randn(12, 6), y)
    no_targets = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 4)}
    up = FedProto().client_update(client, no_targets)
    assert up["counts"].tolist() == [7, 5]


@pytest.mark.parametrize("method", [FD(gamma=0.0), FedProto(lam=0.0)])
def test_with_weight_zero_the_loss_is_cross_entropy_alone(method: FD | FedProto) -> None:
    from fedgh.core.local import train

    x, y = torch.randn(60, 6), torch.arange(60) % 3
    torch.manual_seed(0)
    client = a_client(x, y)
    torch.manual_seed(0)
    plain = a_client(x, y)
    width = 3 if isinstance(method, FD) else 4
    method.client_update(client, {"classes": torch.arange(3).int(), "means": torch.ones(3, width)})
    train(plain, lambda x, y: cross_entropy(plain.model(x), y))
    assert_close(client.state(), plain.state())


def test_fedproto_predicts_by_the_nearest_prototype_if_so_configured() -> None:
    """Worked by hand: the classes 0 and 2 have prototypes at -1 and 1, class 1 has none."""
    x = torch.tensor([[-3.0], [0.2], [0.9]])
    client = a_client(x, torch.tensor([0, 2, 2]), nn.Identity(), rep_dim=1)
    down = {"classes": torch.tensor([0, 2]).int(), "means": torch.tensor([[-1.0], [1.0]])}
    method = FedProto(predict="prototype", lam=0.0)
    method.client_update(client, down)
    expected = torch.tensor([[-4.0, -17.0, -16.0], [-1.44, -2.44, -0.64], [-3.61, -4.61, -0.01]])
    assert_close(method.logits(client, x), expected)
    none = {"classes": torch.zeros(0, dtype=torch.int32), "means": torch.zeros(0, 1)}
    method.client_update(client, none)
    assert_close(method.logits(client, x), client.model(x))
    FedProto().client_update(client, down)
    assert_close(FedProto().logits(client, x), client.model(x))
