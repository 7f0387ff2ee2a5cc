"""One client of four is hostile: the server goes on, and learns from the others alone."""

import pytest
from hypothesis import strategies as st
from torch import Tensor

from fedgh.core import wire
from fedgh.core.defence import Defence
from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.methods import METHODS
from tests.fuzz import oracle
from tests.fuzz.arena import (
    HOSTILE,
    NORM,
    Played,
    honest_uploads,
    method_of,
    play,
    spec_of,
    start,
    without_hostile,
)
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import messages
from tests.fuzz.refusal import Refused, attempt

EXAMPLES = st.sampled_from([-1, 0, 1, 5, 2**31, 2**53])


def same(a: Payload, b: Payload) -> bool:
    """The same tensors, to the bit."""
    return a.keys() == b.keys() and all(
        a[name].dtype is b[name].dtype and a[name].equal(b[name]) for name in a
    )


def defences(name: str) -> st.SearchStrategy[Defence]:
    """None, and those that the method can have."""
    agreement = 0.2 if method_of(name).shares == "class means" else 0.0
    return st.sampled_from([Defence(), Defence(agreement, clip=2.0), Defence(clip=0.1)])


def assert_valid(name: str, payload: Payload, message: bytes, examples: int) -> None:
    """What was accepted is what was sent, and keeps every promise."""
    assert oracle.valid(payload, spec_of(name), NORM)
    assert oracle.same(payload, message)
    assert examples >= 1 or not method_of(name).weighs_by_examples


def assert_readable(name: str, played: Played) -> None:
    """No client refuses what the server would send next."""
    for to in played.recipients:
        down = method_of(name).broadcast(played.server, to)
        assert oracle.valid(down, {key: anything(tensor) for key, tensor in down.items()}, NORM)


def anything(tensor: Tensor) -> wire.Field:
    return wire.Field(tensor.dtype, tuple(tensor.shape))


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.045, data=st.data(), examples=EXAMPLES)
def test_a_hostile_upload_is_rejected_or_valid(
    name: str, data: st.DataObject, examples: int
) -> None:
    message, defence = data.draw(messages(spec_of(name))), data.draw(defences(name))
    before = {key: tensor.clone() for key, tensor in start(name).items()}
    uploads = honest_uploads(name) | {HOSTILE: message}
    played = play(name, uploads, {HOSTILE: examples}, defence)
    assert same(start(name), before), "what the round started from was changed in place"
    assert_readable(name, played)
    if HOSTILE in played.accepted:
        assert_valid(name, played.accepted[HOSTILE].payload, message, examples)
    else:
        assert played.rejected.keys() == {HOSTILE}
        assert oracle.harmless(played.rejected[HOSTILE])
        assert same(played.server, without_hostile(name, defence))


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.01, data=st.data(), examples=EXAMPLES)
def test_a_hostile_client_that_is_alone_is_heard_or_ends_the_run(
    name: str, data: st.DataObject, examples: int
) -> None:
    message, defence = data.draw(messages(spec_of(name))), data.draw(defences(name))
    played = attempt(RunError, lambda: play(name, {HOSTILE: message}, {HOSTILE: examples}, defence))
    if isinstance(played, Refused):
        assert "all 4 participants failed" in played.why
        assert played.why.isprintable()
    else:
        assert_valid(name, played.accepted[HOSTILE].payload, message, examples)
