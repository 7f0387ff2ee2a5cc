"""Fed-ET: votes and losses by hand, headers that all share, who keeps what."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedgh.core.average import network_state
from fedgh.core.groups import group_numbers, group_prefix
from fedgh.core.types import Payload, Recipient, SplitModel, Upload, part
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError
from fedgh.methods.fedet import FedET, vote
from fedgh.models import shared_model
from tests.support.families import PUBLIC as HELD_OUT
from tests.support.public_client import PUBLIC, TASK
from tests.support.tiny import mlp, normed, quick

METHOD = FedET(shared="tests.support.tiny:mlp", server_steps=2, server_batch=10)
SAID = torch.tensor([[[4.0, 0.0]], [[0.0, 3.0]], [[0.0, 3.0]]])


def network(client: int) -> SplitModel:
    with torch.random.fork_rng():
        torch.manual_seed(client + 3)
        return SplitModel((normed if client == 1 else mlp)((4,), 4), nn.Linear(4, 3))


def start() -> Payload:
    return METHOD.init_server(TASK, [network(k) for k in range(3)], torch.Generator())


def round_of(*clients: int) -> Uploads:
    groups = group_numbers([network(k) for k in range(3)])
    sent = [Upload(k, 0, network_state(network(k)), groups[k]) for k in clients]
    return Uploads(sent, TASK, 1, public_examples=PUBLIC, make_network=network)


def test_a_vote_by_hand() -> None:
    """Variances 4, 2.25, 2.25: the confident minority wins; the others dissent."""
    label, dissent, heard = vote(SAID)
    assert label.tolist() == [0]
    assert dissent.tolist() == [[0, 3]]
    assert heard.tolist() == [True]
    assert_close(dissent.softmax(1), torch.tensor([[0.047426, 0.952574]]), atol=1e-6, rtol=0)
    weights = torch.tensor([4, 2.25, 2.25]) / 8.5
    consensus = (weights[:, None] * SAID[:, 0]).sum(0)
    assert_close(consensus, torch.tensor([1.882353, 1.588235]))


def test_votes_with_large_logits_by_hand() -> None:
    """Variances 1e40, which single precision cannot hold, and 0.25."""
    label, dissent, heard = vote(torch.tensor([[[1e20, -1e20]], [[0.0, 1.0]]]))
    assert (label.tolist(), dissent.tolist(), heard.tolist()) == ([0], [[0, 1]], [True])
    assert dissent.dtype is torch.float32


def test_without_dissent_there_is_no_second_term() -> None:
    label, dissent, heard = vote(torch.tensor([[[4.0, 0.0]], [[1.0, 0.0]]]))
    assert (label.tolist(), heard.tolist(), dissent.tolist()) == ([0], [False], [[0, 0]])
    flat = vote(torch.ones(2, 1, 2))  # no network prefers any class
    assert all(each.isfinite().all() for each in flat)
    out = torch.zeros(1, 2)
    alone = METHOD.loss(out, (label, dissent, heard), torch.tensor([0]))
    assert alone.item() == pytest.approx(0.693147, abs=1e-6)


def test_the_loss_by_hand() -> None:
    out, rows = torch.zeros(1, 2), torch.tensor([0])
    assert METHOD.loss(out, vote(SAID), rows).item() == pytest.approx(0.718261, abs=1e-6)
    without = replace(METHOD, lam=0.0).loss(out, vote(SAID), rows)
    assert without.item() == pytest.approx(0.693147, abs=1e-6)


def test_a_round_of_the_server_written_out() -> None:
    after = METHOD.server_update(start(), round_of(0, 1, 2))
    large = shared_model(METHOD.shared, TASK)
    headers = [network_state(network(k).header) for k in range(3)]
    large.header.load_state_dict(
        {n: torch.stack([h[n] for h in headers]).mean(0) for n in headers[0]}
    )
    said = torch.stack([network(k).eval()(PUBLIC.x) for k in range(3)]).detach()
    votes = vote(said)
    sgd = torch.optim.SGD(large.train().parameters(), lr=0.005)
    for _ in range(2):
        sgd.zero_grad()
        METHOD.loss(large(PUBLIC.x), votes, torch.arange(10)).backward()
        sgd.step()
    assert_close(part(after, "large."), network_state(large))
    mean = {
        n: (network_state(network(0))[n] + network_state(network(2))[n]) / 2
        for n in network_state(network(0))
    }
    assert_close(part(after, group_prefix(0)), mean)


def test_every_client_gets_its_architecture_with_the_header_of_the_large_network() -> None:
    after = METHOD.server_update(start(), round_of(0, 1))
    for group, client in ((0, 2), (1, 1)):  # client 2 is new
        down = METHOD.broadcast(after, Recipient(client, group=group))
        assert down["header.weight"].equal(after["large.header.weight"])
        network(client).load_state_dict(network(client).state_dict() | down)
        own = part(after, group_prefix(group))
        extractor = [name for name in own if name.startswith("extractor")]
        assert all(down[name].equal(own[name]) for name in extractor)
    assert not any(name.startswith("large.extractor") for name in METHOD.sendable(after))


def test_absent_architectures_and_rounds_without_uploads() -> None:
    before = start()
    after = METHOD.server_update(before, round_of(0))
    kept = part(before, group_prefix(1))
    assert all(part(after, group_prefix(1))[name].equal(kept[name]) for name in kept)
    assert METHOD.server_update(before, round_of()) is before


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    with pytest.raises(MethodError, match="fedet needs public data"):
        quick("method.name=fedet")
    with pytest.raises(ConfigError, match=r"method\.lam"):
        quick("method.name=fedet", *HELD_OUT, "method.lam=-1")
