"""FedHeNN: kernel alignment by hand, the loss, the schedule, checks of uploads."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.local import train
from fedgh.core.types import Payload, Recipient
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.methods.fedhenn import FedHeNN, cka, normalised
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick

START = FedHeNN().init_server(TASK, [], torch.Generator())


def kernel(*feature: float) -> Tensor:
    h = torch.tensor(feature, dtype=torch.float32)[:, None]
    return h @ h.T


def told(clock: int, value: Tensor) -> Payload:
    return {"clock": torch.tensor([clock], dtype=torch.int32), "kernel": value}


def test_alignment_by_hand() -> None:
    one = kernel(1, 0, -1)
    assert cka(one, kernel(1, 0, 0)).item() == pytest.approx(0.75)
    assert cka(one, kernel(1, -2, 1)).item() == pytest.approx(0, abs=1e-6)
    assert cka(one, kernel(3, 0, -3)).item() == pytest.approx(1)  # scale
    assert cka(one, kernel(6, 5, 4)).item() == pytest.approx(1)  # shift
    centred = [k - k.mean(0) - k.mean(1, keepdim=True) + k.mean() for k in (one, kernel(1, 0, 0))]
    assert cka(one, (centred[0] + centred[1]) / 2).item() == pytest.approx(0.98480, abs=1e-5)


def test_equal_representations_have_no_alignment_and_no_nan() -> None:
    assert normalised(kernel(2, 2, 2)).tolist() == [[0.0] * 3] * 3
    h = torch.ones(3, 2, requires_grad=True)
    cka(h @ h.T, kernel(1, 0, -1)).backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()


def test_the_mean_of_uploads_and_a_round_without_them() -> None:
    after = FedHeNN().server_update(
        START, sent([{"kernel": kernel(1, 0)}, {"kernel": kernel(0, 1)}])
    )
    assert after["kernel"].tolist() == [[0.5, 0], [0, 0.5]]
    assert after["clock"].tolist() == [1]
    assert FedHeNN().server_update(after, sent([])) is after


def test_nobody_is_pulled_in_the_first_round() -> None:
    client, alone = public_client(), public_client()
    FedHeNN().client_update(client, START)
    train(alone, lambda x, y: cross_entropy(alone.model(x), y))
    assert all(alone.model.state_dict()[n].equal(t) for n, t in client.model.state_dict().items())


@pytest.mark.parametrize("clock", [1, 4])
def test_a_step_of_training_written_out(clock: int) -> None:
    method = FedHeNN(eta=0.3)
    client, twin = public_client(lr=0.5, batch_size=12), public_client()
    mean = normalised(PUBLIC.x @ PUBLIC.x.T)
    method.client_update(client, told(clock, mean))
    own = twin.data.train
    h = twin.model.represent(PUBLIC.x)
    pull = 0.3 * clock**0.5 * (1 - cka(mean, h @ h.T))
    (cross_entropy(twin.model(own.x), own.labels) + pull).backward()
    for weight, moved in zip(twin.model.parameters(), client.model.parameters(), strict=True):
        assert_close(moved, weight - 0.5 * (0 if weight.grad is None else weight.grad))


def test_what_crosses() -> None:
    method, shapes = FedHeNN(samples=6), shapes_of(TASK)
    up = method.client_update(public_client(), START)
    wire.read(wire.to_bytes(up), method.upload_specs(shapes))
    method.check_upload(TASK, up, 1000)
    assert up["kernel"].norm().item() == pytest.approx(1)
    assert_close(up["kernel"].sum(0), torch.zeros(6))
    down = method.broadcast(method.server_update(START, sent([up])), Recipient(2))
    wire.read(wire.to_bytes(down), method.download_specs(shapes))
    raw = replace(method, raw=True).client_update(public_client(), START)
    assert_close(normalised(raw["kernel"]), up["kernel"])


def test_impossible_kernels_are_rejected() -> None:
    good = normalised(PUBLIC.x @ PUBLIC.x.T)
    method = FedHeNN()
    method.check_upload(TASK, {"kernel": good}, 1000)
    with pytest.raises(WireError, match="norm"):
        method.check_upload(TASK, {"kernel": good * 2}, 1000)
    twisted = 0.9 * good
    twisted[0, 1] += 0.01
    for bad in (twisted, -good):
        with pytest.raises(WireError, match="not symmetric, or has a negative diagonal"):
            method.check_upload(TASK, {"kernel": bad}, 1000)


def test_public_labels_are_not_read_and_the_control_uses_its_own_kernel() -> None:
    states = []
    for labels in (PUBLIC.y, torch.arange(10) % 3):
        client = replace(public_client(), public_examples=replace(PUBLIC, y=labels))
        FedHeNN().client_update(client, told(1, normalised(PUBLIC.x @ PUBLIC.x.T)))
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])
    client = public_client()
    up = FedHeNN(learn_from="own").client_update(client, START)
    assert client.memory["kernel"].equal(up["kernel"])


def test_the_control_is_pulled_towards_its_own_last_kernel() -> None:
    method = FedHeNN(learn_from="own", eta=0.3, samples=6)
    client, plain = public_client(), public_client()
    up = method.client_update(client, START)
    replace(method, learn_from="all").client_update(plain, START)
    for each in (client, plain):
        each.round = 2
    method.client_update(client, told(1, torch.full((6, 6), 99.0)))
    replace(method, learn_from="all").client_update(plain, told(1, up["kernel"]))
    assert_close(client.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="fedhenn needs public data"):
        quick("method.name=fedhenn")
    with pytest.raises(ConfigError, match=r"method\.samples"):
        quick("method.name=fedhenn", *HELD_OUT, "method.samples=1")
