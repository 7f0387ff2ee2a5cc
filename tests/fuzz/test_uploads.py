"""One of four clients is malicious: the server continues with valid uploads only."""

import pytest
from hypothesis import strategies as st
from torch import Tensor

from fedgh.core import wire
from fedgh.core.defence import Defence
from fedgh.core.types import Payload, part
from fedgh.errors import RunError
from fedgh.methods import METHODS
from tests.fuzz import oracle
from tests.fuzz.arena import (
    HOSTILE,
    NORM,
    RoundResult,
    honest_uploads,
    init_server,
    method_of,
    play,
    specs_of,
    start,
    without_hostile,
)
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import messages
from tests.fuzz.refusal import Refused, attempt

EXAMPLES = st.sampled_from([-1, 0, 1, 5, 2**31, 2**53])


def equal(a: Payload, b: Payload) -> bool:
    """Return true if two payloads are equal to the bit."""
    return a.keys() == b.keys() and all(
        a[name].dtype is b[name].dtype and a[name].equal(b[name]) for name in a
    )


def defences(name: str) -> st.SearchStrategy[Defence]:
    """Draw a defence that the method supports, or none."""
    agreement = 0.2 if method_of(name).shares == "class means" else 0.0
    return st.sampled_from([Defence(), Defence(agreement, clip=2.0), Defence(clip=0.1)])


def assert_valid(name: str, payload: Payload, message: bytes, examples: int) -> None:
    """Check that an accepted payload equals the sent one and matches its declaration."""
    assert any(oracle.valid(payload, spec, NORM) for spec in specs_of(name))
    assert oracle.equals(payload, message)
    assert examples >= 1 or not method_of(name).weighs_by_examples


def assert_readable(name: str, result: RoundResult) -> None:
    """Check that clients would accept the next downloads of the server."""
    for to in result.recipients:
        down = method_of(name).broadcast(result.server, to)
        assert oracle.valid(down, {key: field_of(tensor) for key, tensor in down.items()}, NORM)


def field_of(tensor: Tensor) -> wire.Field:
    return wire.Field(tensor.dtype, tuple(tensor.shape))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "standalone"])
def test_honest_uploads_change_what_the_server_knows(name: str) -> None:
    assert not equal(part(start(name), "server."), init_server(name))


def test_fedgems_learns_from_honest_answers_in_round_2_too() -> None:
    before = part(start("fedgems"), "server.")
    assert len(before["wanted"]) > 0
    assert not equal(play("fedgems", honest_uploads("fedgems")).server, before)


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.045, data=st.data(), examples=EXAMPLES)
def test_a_malicious_upload_is_rejected_or_valid(
    name: str, data: st.DataObject, examples: int
) -> None:
    message = data.draw(st.sampled_from(specs_of(name)).flatmap(messages))
    defence = data.draw(defences(name))
    before = {key: tensor.clone() for key, tensor in start(name).items()}
    uploads = honest_uploads(name) | {HOSTILE: message}
    result = play(name, uploads, {HOSTILE: examples}, defence)
    assert equal(start(name), before), "what the round started from was changed in place"
    assert_readable(name, result)
    if HOSTILE in result.accepted:
        assert_valid(name, result.accepted[HOSTILE].payload, message, examples)
    else:
        assert result.rejected.keys() == {HOSTILE}
        assert oracle.harmless(result.rejected[HOSTILE])
        assert equal(result.server, without_hostile(name, defence))


@pytest.mark.parametrize("name", METHODS)
@fuzz(0.01, data=st.data(), examples=EXAMPLES)
def test_the_upload_of_a_single_malicious_client_is_accepted_or_ends_the_run(
    name: str, data: st.DataObject, examples: int
) -> None:
    message = data.draw(st.sampled_from(specs_of(name)).flatmap(messages))
    defence = data.draw(defences(name))
    result = attempt(RunError, lambda: play(name, {HOSTILE: message}, {HOSTILE: examples}, defence))
    if isinstance(result, Refused):
        assert "all 4 participants failed" in result.why
        assert result.why.isprintable()
    else:
        assert_valid(name, result.accepted[HOSTILE].payload, message, examples)
