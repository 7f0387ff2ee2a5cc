"""Downloads of a malicious server: a client trains on a valid one, or fails and keeps its state."""

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
from tests.fuzz.arena import (
    NORM,
    TASK,
    init_server,
    method_of,
    public_of,
    resources_of,
    start,
)
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import messages
from tests.support.tiny import mlp

CLIENT = 0


@dataclass
class MemoryFiles:
    """Storage for one client in memory; written states are recorded, not read back."""

    state: Payload | None = None
    written: list[Payload] = field(default_factory=list)

    def load(self, client: int) -> Payload | None:
        """Return the client's state."""
        return self.state

    def write(self, round: int, client: int, state: Payload) -> None:
        """Record a new state."""
        self.written.append(state)

    def seal(self, round: int) -> None:
        """Do nothing: no file is used."""


@cache
def blueprint(name: str) -> Blueprint:
    """Return the blueprint of clients with twelve samples each."""
    y = torch.arange(12 * TASK.num_clients) % TASK.num_classes
    x = torch.randn(len(y), *TASK.input_shape, generator=torch.Generator().manual_seed(0))
    parts = partition.iid(y.numpy(), TASK.num_clients, seed=0)
    dealt = partition.assemble(parts, y.numpy(), seed=0)
    points = Source("points", x, y, tuple(map(str, range(TASK.num_classes))))
    method, local = method_of(name), LocalTraining()
    public = public_of(name) if method.public_for == "all" else None
    return Blueprint(TASK, method, local, (mlp,), (points,), dealt, max_norm=NORM, public=public)


def train(name: str, state: Payload | None, round: int, down: bytes) -> tuple[Payload | None, str]:
    """Run a job; return the state that the client writes, and its error."""
    files = MemoryFiles(state)
    host = ClientHost(blueprint(name), files, memory=0)  # nothing is kept between two jobs
    reply = host.run(Job(CLIENT, round, down, evaluate=True, trained=round - 1))
    assert (reply.client_id, reply.round) == (CLIENT, round)
    assert (reply.up is None) == (not files.written)
    return (files.written[0] if files.written else None), reply.error or ""


def recipient(name: str, last_round: int = 0) -> Recipient:
    """Return the server's knowledge of the client."""
    group, sizes = resources_of(name).architecture(CLIENT)
    return Recipient(CLIENT, last_round=last_round, group=group, sizes=sizes)


@cache
def after_one_round(name: str) -> Payload:
    """Return the state of a client after the first round."""
    down = method_of(name).broadcast(init_server(name), recipient(name))
    state, error = train(name, None, 1, wire.to_bytes(down))
    assert state is not None, error
    return state


@cache
def honest_download(name: str) -> Payload:
    """Return the download of an honest server in the second round."""
    return method_of(name).broadcast(part(start(name), "server."), recipient(name, last_round=1))


@pytest.mark.parametrize("name", METHODS)
def test_a_client_trains_on_an_honest_download(name: str) -> None:
    state, error = train(name, after_one_round(name), 2, wire.to_bytes(honest_download(name)))
    assert state is not None, error
    assert error == ""


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.01, data=st.data())
def test_a_malicious_download_is_refused_or_valid(name: str, data: st.DataObject) -> None:
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
        assert oracle.equals(payload, message)
        assert any(oracle.valid(payload, spec, NORM) for spec in specs)
