"""Bytes are read exactly or refused; only payloads that match their declaration are accepted."""

import json
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import strategies as st

from fedgh.core import wire
from fedgh.errors import WireError
from fedgh.methods import METHODS
from tests.fuzz import oracle
from tests.fuzz.arena import NORM, spec_of
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import frame, messages, payloads, with_false_header
from tests.fuzz.refusal import Refused, attempt

SPECS = {name: spec_of(name) for name in METHODS}
ANY = st.sampled_from(sorted(SPECS))


@fuzz(0.06, name=ANY, data=st.data())
def test_bytes_are_read_exactly_or_refused(name: str, data: st.DataObject) -> None:
    honest_message = wire.to_bytes(
        {"a": torch.ones(2, 3), "b": torch.arange(4), "c": torch.ones(0, 2)}
    )
    message = data.draw(
        st.one_of(
            with_false_header(honest_message),
            with_false_header(honest_message),
            messages(SPECS[name]),
        )
    )
    payload = attempt(WireError, lambda: wire.from_bytes(message))
    if isinstance(payload, Refused):
        assert oracle.harmless(payload.why)
        return
    header = oracle.header(message)
    assert payload.keys() == header.keys()
    for key, entry in header.items():
        tensor = payload[key]
        assert list(tensor.shape) == entry["shape"]
        assert tensor.nbytes == entry["data_offsets"][1] - entry["data_offsets"][0]
    assert wire.nbytes(payload) <= len(message)


@fuzz(0.06, name=ANY, data=st.data())
def test_exactly_the_payloads_that_match_the_declaration_are_accepted(
    name: str, data: st.DataObject
) -> None:
    payload = data.draw(payloads(SPECS[name]))
    outcome = attempt(WireError, lambda: wire.check(payload, SPECS[name], NORM))
    assert isinstance(outcome, Refused) != oracle.valid(payload, SPECS[name], NORM)
    assert outcome is None or oracle.harmless(outcome.why)


def message_of(dtype: str, shape: list[int], names: Sequence[str] = ("means",)) -> bytes:
    """Return a message with tensors that have no elements."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    return frame(json.dumps(dict.fromkeys(names, entry)).encode(), b"")


@pytest.mark.parametrize(
    "message",
    [
        message_of("F32", [0], [f"../{k}" for k in range(100_000)]),
        frame(b'{"a":' * 100_000, b""),
        frame(b"{}", b"", length=2**63),
        frame(b"{" + b" " * 1_000_000 + b"}", b""),
        frame(json.dumps({"n" * 1_000_000: {}}).encode(), b""),
        message_of("F32", [0, 2**63]),
        message_of("F32", [0, 2**40, 2**40]),
        message_of("F8_E8M0", [0]),
        message_of("F32", [0] * 50),
    ],
    ids=["tensors", "depth", "length", "spaces", "name", "size", "sizes", "dtype", "rank"],
)
def test_messages_with_extreme_headers_are_refused(message: bytes) -> None:
    for read in (wire.from_bytes, partial(wire.read, specs=[SPECS["fedgh"]])):
        outcome = attempt(WireError, partial(read, message))
        assert not isinstance(outcome, Refused) or oracle.harmless(outcome.why)
    assert isinstance(outcome, Refused)
