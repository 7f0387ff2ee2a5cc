"""DS-FL: entropy reduction by hand, and what crosses."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.types import Recipient
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.methods.dsfl import DSFL
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick

START = DSFL().init_server(TASK, [], torch.Generator())
ONE, TWO = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.3, 0.6, 0.1]])


def agreed(method: DSFL) -> Tensor:
    uploads = sent([{"probabilities": ONE}, {"probabilities": TWO}])
    return method.server_update(START, uploads)["probabilities"]


def entropy(p: Tensor) -> float:
    return float(-(p * p.log()).sum())


def test_the_aggregate_by_hand() -> None:
    p = agreed(DSFL())
    assert_close(p, torch.tensor([[0.72140, 0.26539, 0.01321]]), atol=1e-5, rtol=0)
    assert entropy(p) == pytest.approx(0.64480, abs=1e-5)
    plain = agreed(DSFL(sharpen="none"))
    assert_close(plain, torch.tensor([[0.5, 0.4, 0.1]]))
    assert entropy(plain) == pytest.approx(0.94335, abs=1e-5)
    power = agreed(DSFL(sharpen="power"))
    assert_close(power, torch.tensor([[0.59524, 0.38095, 0.02381]]), atol=1e-5, rtol=0)
    flat = agreed(DSFL(temperature=1e6))
    assert_close(flat, torch.full((1, 3), 1 / 3))


def test_a_sure_mean_stays_sure_and_one_of_many_classes_becomes_flatter() -> None:
    sure = torch.eye(10)[:1]
    assert float(DSFL().sharpened(sure)[0, 0]) == pytest.approx(0.9996, abs=1e-4)
    of_100 = torch.full((1, 100), 0.7 / 99)
    of_100[0, 0] = 0.3
    assert entropy(of_100) == pytest.approx(3.83, abs=5e-3)
    assert entropy(DSFL().sharpened(of_100)) == pytest.approx(4.30, abs=5e-3)


@pytest.mark.parametrize(("classes", "top", "sharpened"), [(10, 0.3, 0.506), (100, 0.3, 0.159)])
def test_with_many_classes_the_aggregate_is_flatter(
    classes: int, top: float, sharpened: float
) -> None:
    p = torch.full((1, classes), (1 - top) / (classes - 1))
    p[0, 0] = top
    assert float(DSFL().sharpened(p)[0, 0]) == pytest.approx(sharpened, abs=1e-3)
    if classes == 100:
        assert float(DSFL(temperature=0.05).sharpened(p)[0, 0]) == pytest.approx(0.78, abs=5e-3)


def test_zeros_stay_finite_with_the_power_rule() -> None:
    p = DSFL(sharpen="power").sharpened(torch.tensor([[1.0, 0.0]]))
    assert p.tolist() == [[1.0, 0.0]]


def test_what_crosses() -> None:
    method, shapes = DSFL(per_round=6), shapes_of(TASK)
    up = method.client_update(public_client(), START)
    assert_close(up["probabilities"].sum(1), torch.ones(6))
    wire.read(wire.to_bytes(up), method.upload_specs(shapes))
    method.up.check(up)
    with pytest.raises(WireError, match="sum differs from 1"):
        method.up.check({"probabilities": torch.full((6, 3), 0.5)})
    down = method.broadcast(method.server_update(START, sent([up])), Recipient(2))
    wire.read(wire.to_bytes(down), method.download_specs(shapes))


def test_a_step_towards_soft_labels_written_out() -> None:
    method = DSFL(digest_epochs=1, digest_batch=10, digest_lr=0.5)
    client, twin = public_client(lr=1e-12), public_client()
    targets = torch.randn(10, 3).softmax(1)
    method.client_update(client, {"clock": START["clock"] + 1, "probabilities": targets})
    loss = -(targets * twin.model(PUBLIC.x).log_softmax(1)).sum(1).mean()
    assert_close(loss, cross_entropy(twin.model(PUBLIC.x), targets))
    loss.backward()
    for weight, moved in zip(twin.model.parameters(), client.model.parameters(), strict=True):
        assert weight.grad is not None
        assert_close(moved, weight - 0.5 * weight.grad)


def test_the_control_learns_its_own_sharpened_outputs() -> None:
    method, client = DSFL(learn_from="own"), public_client()
    up = method.client_update(client, START)
    assert_close(client.memory["probabilities"], method.sharpened(up["probabilities"]))


def test_public_labels_are_not_read() -> None:
    states = []
    for labels in (PUBLIC.y, torch.arange(10) % 3):
        client = replace(public_client(), public_examples=replace(PUBLIC, y=labels))
        targets = torch.full((10, 3), 1 / 3)
        DSFL().client_update(client, {"clock": START["clock"] + 1, "probabilities": targets})
        states.append(client.state())
    assert all(states[0][name].equal(states[1][name]) for name in states[0])


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="dsfl needs public data"):
        quick("method.name=dsfl")
    with pytest.raises(ConfigError, match=r"method\.per_round"):  # batch normalisation needs two
        quick("method.name=dsfl", *HELD_OUT, "method.per_round=1")
