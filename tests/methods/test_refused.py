"""Uploads that are as declared, but that no honest client sends."""

import pytest
import torch
from torch import nn

from fedgh.core import wire
from fedgh.core.average import network_spec, network_state, update_spec
from fedgh.core.low_rank import LEFT, RIGHT, compress
from fedgh.core.server import Server
from fedgh.errors import WireError
from fedgh.methods.fd import FD
from fedgh.methods.fedkd import FedKD
from tests.fuzz.arena import CLIENTS, NORM, TASK, Answers, method_of, spec_of, start
from tests.fuzz.payloads import honest


def test_a_negative_variance_is_rejected() -> None:
    state = network_state(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    wire.check(state, network_spec(state))
    hostile = {**state, "1.running_var": torch.tensor([1.0, -1.0])}
    with pytest.raises(WireError, match=r"'1.running_var' has values below 0"):
        wire.check(hostile, network_spec(state))
    wire.check(hostile, update_spec(state))  # an update may be negative


def test_mean_outputs_with_another_sum_than_one_are_rejected() -> None:
    rows = torch.randn(3, 100).softmax(1)
    classes = torch.arange(3).int()
    FD().up.check({"classes": classes, "means": rows})
    for hostile in (torch.ones(1, 100), torch.zeros(1, 100), rows * 1.02):
        with pytest.raises(WireError, match="a row whose sum differs from 1"):
            FD().up.check({"classes": classes, "means": hostile})


def test_a_round_with_too_large_a_sum_is_discarded() -> None:
    """The update of each round is accepted, and participants receive only that update."""
    name, norms = "fedkd", []
    state = start(name)
    hostile = {key: tensor * 0 for key, tensor in honest(spec_of(name), seed=0).items()}
    bias = next(key for key in hostile if key.endswith("header.bias"))
    hostile[bias] = hostile[bias] + 400.0
    message = wire.to_bytes(hostile)
    for round in range(2, 5):
        federation = Server(
            TASK, method_of(name), Answers(dict.fromkeys(range(CLIENTS), message), {}), state,
            max_norm=NORM,
        )  # fmt: skip
        record = federation.round(round)
        state = federation.state()
        norms.append((record.discarded is None, wire.largest_row_norm(state[f"server.sum.{bias}"])))
    assert [kept for kept, _ in norms] == [True, False, False]
    assert norms[0][1] == norms[2][1] < NORM


def test_factors_with_a_large_product_are_rejected() -> None:
    factors = compress({"weight": torch.randn(4, 6)}, energy=1.0)
    FedKD().check_upload(TASK, factors, 100.0)
    hostile = {
        f"weight{LEFT}": torch.full((4, 4), 40.0),
        f"weight{RIGHT}": torch.full((4, 6), 40.0),
    }
    assert max(map(wire.largest_row_norm, hostile.values())) < 100
    with pytest.raises(WireError, match=r"'weight' has a row of norm 1.568e\+04, above 100"):
        FedKD().check_upload(TASK, hostile, 100.0)
