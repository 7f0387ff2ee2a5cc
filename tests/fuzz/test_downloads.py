"""A hostile server: a client learns from a sound message, or fails and stays as it was."""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from hypothesis import strategies as st

from fedgh.core import wire
from fedgh.core.message import Shapes
from fedgh.core.types import Job, LocalTraining, Payload, Recipient, part
from fedgh.data import partition
from fedgh.data.sources import Source
from fedgh.engines.host import Blueprint, ClientHost
from fedgh.methods import METHODS
from tests.fuzz import oracle
from tests.fuzz.arena import NORM, TASK, init_server, method_of, start
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import messages
from tests.support.tiny import mlp

CLIENT = 0


@dataclass
class Kept:
    """The file of a client, in memory; what is written is seen, and forgotten."""

    state: Payload | None = None
    written: list[Payload] = field(default_factory=list)

    def load(self, client: int) -> Payload | None:
        """Its state."""
        return self.state

    def write(self, round: int, client: int, state: Payload) -> None:
        """See a new one."""
        self.written.append(state)

    def seal(self, round: int) -> None:
        """Nothing is on a disk."""


@cache
def blueprint(name: str) -> Blueprint:
    """Clients with twelve points each."""
    y = torch.arange(12 * TASK.num_clients) % TASK.num_classes
    x = torch.randn(len(y), *TASK.input_shape, generator=torch.Generator().manual_seed(0))
    parts = partition.iid(y.numpy(), TASK.num_clients, seed=0)
    dealt = partition.assemble(parts, y.numpy(), seed=0)
    points = Source("points", x, y, tuple(map(str, range(TASK.num_classes))))
    method, local = method_of(name), LocalTraining()
    return Blueprint(TASK, method, local, (mlp,), (points,), dealt, max_norm=NORM)


def train(name: str, state: Payload | None, round: int, down: bytes) -> tuple[Payload | None, str]:
    """The state that a client writes after a job, and why it has failed."""
    files = Kept(state)
    host = ClientHost(blueprint(name), files, memory=0)  # nothing is kept between two jobs
    reply = host.run(Job(CLIENT, round, down, evaluate=True, trained=round - 1))
    assert (reply.client_id, reply.round) == (CLIENT, round)
    assert (reply.up is None) == (not files.written)
    return (files.written[0] if files.written else None), reply.error or ""


@cache
def after_one_round(name: str) -> Payload:
    """The state of a client that has taken part in the first round."""
    down = method_of(name).broadcast(init_server(name), Recipient(CLIENT))
    state, error = train(name, None, 1, wire.to_bytes(down))
    assert state is not None, error
    return state


@cache
def usual(name: str) -> Payload:
    """What an honest server sends in the second round."""
    return method_of(name).broadcast(part(start(name), "server."), Recipient(CLIENT, last_round=1))


@pytest.mark.parametrize("name", METHODS)
def test_an_honest_message_is_learned_from(name: str) -> None:
    state, error = train(name, after_one_round(name), 2, wire.to_bytes(usual(name)))
    assert state is not None, error
    assert error == ""


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.01, data=st.data())
def test_a_hostile_download_is_refused_or_valid(name: str, data: st.DataObject) -> None:
    specs = method_of(name).download_specs(Shapes.of(blueprint(name).make(CLIENT)))
    message = data.draw(st.sampled_from(specs).flatmap(messages))
    before = {key: tensor.clone() for key, tensor in after_one_round(name).items()}
    state, error = train(name, after_one_round(name), 2, message)
    assert all(tensor.equal(before[key]) for key, tensor in after_one_round(name).items())
    if state is None:
        assert error.isprintable()
        assert len(error) < 2 * oracle.MAX_REASON
    else:
        payload = wire.from_bytes(message)
        assert oracle.same(payload, message)
        assert any(oracle.valid(payload, spec, NORM) for spec in specs)
