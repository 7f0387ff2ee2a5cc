"""CFD: quantisation, changes and votes by hand; changes only against what the server has."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core import soft_labels, wire
from fedgh.core.types import Payload, Recipient
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.cfd import CFD
from fedgh.testing import check_runs
from fedgh.training import loop
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK, public_client, sent
from tests.support.rounds import shapes_of
from tests.support.tiny import quick, tiny_shared

MEAN = CFD(server_steps=0, restart=False)  # no network of the server
KEPT = CFD(shared="tests.support.tiny:mlp", server_steps=3, server_batch=4, restart=False)


def quantised(bits: int, *p: float) -> list[int] | int:
    found: list[int] | int = soft_labels.quantise(torch.tensor([p]), bits)[0].tolist()
    return found


def labels(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def number(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int32)


def test_quantisation_by_hand() -> None:
    assert quantised(2, 0.5, 0.3, 0.2) == [1, 1, 1]
    assert quantised(2, 0.7, 0.2, 0.1) == [2, 1, 0]
    assert quantised(1, 0.5, 0.3, 0.2) == 0
    assert quantised(1, 0.2, 0.4, 0.4) == 1  # of equal ones the first class


def test_quantisation_is_the_nearest_of_all_by_brute_force() -> None:
    torch.manual_seed(0)
    grid = torch.cartesian_prod(*[torch.arange(8)] * 3)
    grid = grid[grid.sum(1) == 7] / 7
    p = torch.rand(200, 3).softmax(1)
    best = torch.cdist(p, grid, p=1).min(1).values
    found = soft_labels.quantise(p, 3) / 7
    assert_close((found - p).abs().sum(1), best)
    assert_close(found.sum(1), torch.ones(200))


def test_the_entropy_of_a_difference_by_hand() -> None:
    """(3, 2, 1, 2) after (3, 1, 1, 2): 0 where unchanged, else the label."""
    assert soft_labels.entropy(torch.tensor([0, 2, 0, 0])) == pytest.approx(0.81128, abs=1e-5)


def test_votes_by_hand() -> None:
    votes = [{"labels": labels(k)} for k in (0, 0, 2)]
    server = replace(MEAN, down_bits=32).server_update({}, sent(votes))
    assert_close(server["sent.probabilities"], torch.tensor([[2 / 3, 0, 1 / 3]]))
    assert MEAN.server_update({}, sent(votes))["sent.labels"].tolist() == [0]


def said(method: CFD, known: int, before: Payload, rows: list[int]) -> Payload:
    """Return the upload of a client that predicts these classes."""
    client = public_client()
    client.round, client.memory = 5, before
    p = torch.nn.functional.one_hot(torch.tensor(rows), 3).float()
    return soft_labels.upload(client, p, method.bits, number(known))


def test_only_changes_are_sent_if_that_is_smaller() -> None:
    before = {"labels": labels(*[0] * 10), "round": number(4)}
    rows = [0, 0, 2, *[0] * 7]
    up = said(MEAN, 4, before, rows)
    assert (up["where"].tolist(), up["labels"].tolist()) == ([2], [2])
    assert wire.nbytes(up) == 5
    assert said(MEAN, 4, before, [1] * 10).keys() == {"labels"}  # 10 bytes instead of 50
    assert said(MEAN, 4, before, [0] * 10)["where"].tolist() == []
    specs = MEAN.upload_specs(shapes_of(TASK))
    for rows in ([0] * 10, [1] * 10, [0, 0, 2, *[0] * 7]):
        up = said(MEAN, 4, before, rows)
        assert wire.read(wire.to_bytes(up), specs).keys() == up.keys()


@pytest.mark.parametrize("known", [0, 3])
def test_changes_refer_to_the_upload_that_the_server_has(known: int) -> None:
    """The last upload, of round 4, was lost or rejected: all labels are sent again."""
    before = {"labels": labels(*[0] * 10), "round": number(4)}
    assert said(MEAN, known, before, [0] * 10).keys() == {"labels"}


def test_the_server_rebuilds_labels_from_changes() -> None:
    first = MEAN.server_update({}, sent([{"labels": labels(0, 1, 2)}], round=1))
    assert MEAN.broadcast(first, Recipient(0))["known"].tolist() == [1]
    assert MEAN.broadcast(first, Recipient(1))["known"].tolist() == [0]  # a newcomer
    change = {"where": torch.tensor([1], dtype=torch.int32), "labels": labels(2)}
    second = MEAN.server_update(first, sent([change], round=2))
    assert second["sent.labels"].tolist() == [0, 2, 2]
    assert MEAN.broadcast(second, Recipient(0))["known"].tolist() == [2]
    unknown = MEAN.server_update({}, sent([change]))  # a client that lies
    assert unknown == {}


def test_a_run_of_two_rounds_counts_the_bytes_that_were_sent() -> None:
    client, server = public_client(lr=1e-12), MEAN.init_server(TASK, [], torch.Generator())
    sizes = []
    for round_ in (1, 2):
        client.round = round_
        down = MEAN.broadcast(server, Recipient(0))
        wire.read(wire.to_bytes(down), MEAN.download_specs(shapes_of(TASK)))
        if round_ == 2:  # learn nothing, so that no label changes
            down = {"known": down["known"]}
        up = MEAN.client_update(client, down)
        sizes.append(wire.nbytes(up))
        server = MEAN.server_update(server, sent([up], round=round_))
    assert sizes == [10, 0]
    assert client.metrics["delta_bits"] == 0


def test_the_server_s_network_learns_and_remembers_absent_clients() -> None:
    server = KEPT.init_server(TASK, [], torch.Generator())
    after = KEPT.server_update(server, sent([{"labels": labels(*[1] * 10)}]))
    assert after["sent.labels"].shape == (10,)
    assert not after["network.header.bias"].equal(server["network.header.bias"])
    assert any(name.startswith("adam.") for name in after)
    assert not any("network" in name for name in KEPT.sendable(after))
    nothing = KEPT.server_update(after, sent([]))
    assert nothing is after


def test_a_restart_forgets_the_client_s_own_weights() -> None:
    method = replace(MEAN, restart=True)
    models = []
    for seed in (0, 1):
        client = public_client(seed, lr=1e-12)
        client = replace(client, make_model=lambda: public_client(7).model)
        with torch.random.fork_rng():
            method.client_update(client, {"known": number(0)})
        models.append(client.model.state_dict())
    assert_close(models[0], models[1])


def test_the_control_learns_from_its_own_labels() -> None:
    client = public_client(lr=1e-12)
    method = replace(MEAN, learn_from="own")
    method.client_update(client, {"known": number(0), "labels": labels(*[2] * 10)})
    assert "public_loss" not in client.metrics  # it had said nothing before
    client.round = 2
    method.client_update(client, {"known": number(1)})
    assert "public_loss" in client.metrics


def test_public_labels_are_not_read_by_clients_or_server() -> None:
    states, servers = [], []
    for hidden in (PUBLIC.y, torch.arange(10) % 3):
        public = replace(PUBLIC, y=hidden)
        client = replace(public_client(), public_examples=public)
        MEAN.client_update(client, {"known": number(0), "labels": labels(*[2] * 10)})
        states.append(client.state())
        uploads = replace(sent([{"labels": labels(*[1] * 10)}]), public_examples=public)
        servers.append(KEPT.server_update(KEPT.init_server(TASK, [], torch.Generator()), uploads))
    for one, other in (states, servers):
        assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(("down_bits", "expected"), [(1, 10_000), (32, 205_000)])
def test_bytes_of_5000_samples_and_10_classes(down_bits: Literal[1, 32], expected: int) -> None:
    """Beside them, a client gets the round of its last upload: four bytes."""
    method, p = replace(MEAN, down_bits=down_bits), torch.rand(5000, 10).softmax(1)
    up = soft_labels.upload(public_client(), p, method.bits, number(0))
    server = method.server_update({}, sent([up], replace(TASK, num_classes=10)))
    down = method.broadcast(server, Recipient(0))
    assert wire.nbytes(up) + wire.nbytes(down) == expected + 4


def test_records_have_the_bytes_that_were_sent(tmp_path: Path) -> None:
    """Networks stay as they are, so that after all 40 labels of five clients no label changes."""
    still = ["method.restart=false", "method.digest_lr=1e-12", "local.lr=1e-12"]
    words = ["method.name=cfd", "model.extractors=tests.support.tiny:mlp", *HELD_OUT]
    run = loop.run(quick(*words, *still, "method.server_steps=0"), tmp_path / "run")
    assert [record.bytes_up for record in run.records()] == [200, 0, 0]
    assert [record.bytes_down for record in run.records()] == [20, 220, 220]


def test_restarts_are_the_same_on_two_engines_and_in_a_resumed_run(tmp_path: Path) -> None:
    prepared = quick("method.name=cfd", *tiny_shared("cfd"), "method.server_steps=2")
    assert prepared.config.method == CFD(shared="tests.support.tiny:noisy", server_steps=2)
    check_runs(prepared, tmp_path)


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="cfd needs public data"):
        quick("method.name=cfd")
    with pytest.raises(ConfigError, match=r"method\.bits"):
        quick("method.name=cfd", *HELD_OUT, "method.bits=9")
    with pytest.raises(ConfigError, match="256 classes at most"):
        MEAN.init_server(replace(TASK, num_classes=300), [], torch.Generator())
