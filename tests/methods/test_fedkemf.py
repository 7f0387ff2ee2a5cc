"""FedKEMF: ensembles by hand, the server's step, FML's clients."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.losses import distill
from fedgh.core.types import Payload, Recipient, Upload
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedkemf import FedKEMF
from fedgh.methods.fml import FML
from fedgh.models import shared_model
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client
from tests.support.tiny import quick

METHOD = FedKEMF(shared="tests.support.tiny:mlp", server_steps=2, server_batch=10)
SAID = [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])]


def ensemble(method: FedKEMF, said: list[Tensor]) -> Tensor:
    joined: Tensor | None = None
    for logits in said:
        joined = method.joined(joined, logits)
    assert joined is not None
    return joined


def test_ensembles_by_hand() -> None:
    mean = ensemble(METHOD, SAID).softmax(1)
    assert_close(mean, torch.tensor([[0.690399, 0.309601]]))
    largest = ensemble(replace(METHOD, ensemble="max"), SAID)
    assert_close(largest.softmax(1), torch.tensor([[0.880797, 0.119203]]))
    student = torch.zeros(1, 2)
    assert distill(largest, student).item() == pytest.approx(0.327813, abs=1e-6)


def test_the_mean_of_probabilities_for_many_networks() -> None:
    torch.manual_seed(0)
    said = [10 * torch.randn(5, 4) for _ in range(7)]
    expected = torch.stack([logits.softmax(1) for logits in said]).mean(0)
    assert_close(ensemble(METHOD, said).softmax(1), expected)


def trained(seed: int) -> Payload:
    state = network_state(shared_model(METHOD.shared, TASK))
    torch.manual_seed(seed)
    return {name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in state.items()}


def round_of(*clients: int) -> Uploads:
    sent = [Upload(k, k + 1, trained(k)) for k in clients]
    return Uploads(sent, TASK, 1, public_examples=PUBLIC)


@pytest.mark.parametrize("start", ["last", "mean"])
def test_a_round_of_the_server_written_out(start: str) -> None:
    method = FedKEMF(
        shared=METHOD.shared,
        server_steps=2,
        server_batch=10,
        start=start,  # type: ignore[arg-type]
    )
    before = method.init_server(TASK, [], torch.Generator())
    after = method.server_update(before, round_of(0, 1))
    networks = [shared_model(METHOD.shared, TASK) for _ in range(3)]
    for number in (0, 1):
        networks[number].load_state_dict(trained(number))
    p = torch.stack([net(PUBLIC.x).softmax(1) for net in networks[:2]]).mean(0).detach()
    student = networks[2]
    if start == "mean":
        student.load_state_dict({n: (trained(0)[n] + 2 * trained(1)[n]) / 3 for n in trained(0)})
    adam = torch.optim.Adam(student.parameters(), lr=method.server_lr)
    for step in range(2):
        adam.param_groups[0]["lr"] = method.server_lr * (1 if step == 0 else 0.5)
        adam.zero_grad()
        (p * (p.log() - student(PUBLIC.x).log_softmax(1))).sum(1).mean().backward()
        adam.step()
    assert_close(after, network_state(student), atol=1e-5, rtol=1e-3)


def test_clients_are_those_of_fml() -> None:
    assert FedKEMF.client_update is FML.client_update
    assert FedKEMF.loss is FML.loss
    private, shared, y = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2), torch.tensor([0])
    towards_shared, towards_private = distill(shared, private), distill(private, shared)
    assert towards_shared.item() == pytest.approx(0.120115, abs=1e-6)
    assert towards_private.item() == pytest.approx(0.110944, abs=1e-6)
    expected = 0.5 * (0.313262 + 0.120115 + 0.693147 + 0.110944)
    assert METHOD.loss(private, shared, y).item() == pytest.approx(expected, abs=1e-5)


def test_a_newcomer_starts_from_the_global_network_and_keeps_its_private_one() -> None:
    before = METHOD.init_server(TASK, [], torch.Generator())
    after = METHOD.server_update(before, round_of(0, 1))
    down = METHOD.broadcast(after, Recipient(7))
    assert all(down[name].equal(after[name]) for name in after)
    client = public_client(lr=1e-12)
    private = network_state(client.model)
    assert_close(METHOD.client_update(client, down), after)
    assert_close(network_state(client.model), private)
    assert not after["header.weight"].equal(before["header.weight"])


def test_a_round_without_uploads_changes_nothing() -> None:
    before = METHOD.init_server(TASK, [], torch.Generator())
    assert METHOD.server_update(before, round_of()) is before


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="fedkemf needs public data"):
        quick("method.name=fedkemf")
    with pytest.raises(ConfigError, match=r"method\.ensemble"):
        quick("method.name=fedkemf", *HELD_OUT, "method.ensemble=vote")
