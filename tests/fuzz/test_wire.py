"""Bytes are read as what they say, or refused; what is declared is accepted, and nothing else."""

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
from tests.fuzz.payloads import frame, messages, payloads, reheaded
from tests.fuzz.refusal import Refused, attempt

SPECS = {name: spec_of(name) for name in METHODS}
ANY = st.sampled_from(sorted(SPECS))


@fuzz(0.06, name=ANY, data=st.data())
def test_bytes_are_read_as_what_they_say_or_refused(name: str, data: st.DataObject) -> None:
    usual = wire.to_bytes({"a": torch.ones(2, 3), "b": torch.arange(4), "c": torch.ones(0, 2)})
    message = data.draw(st.one_of(reheaded(usual), reheaded(usual), messages(SPECS[name])))
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
def test_what_keeps_every_promise_is_accepted_and_nothing_else(
    name: str, data: st.DataObject
) -> None:
    payload = data.draw(payloads(SPECS[name]))
    found = attempt(WireError, lambda: wire.check(payload, SPECS[name], NORM))
    assert isinstance(found, Refused) != oracle.valid(payload, SPECS[name], NORM)
    assert found is None or oracle.harmless(found.why)


def one(dtype: str, shape: list[int], names: Sequence[str] = ("means",)) -> bytes:
    """Tensors without a number in them."""
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    return frame(json.dumps(dict.fromkeys(names, entry)).encode(), b"")


@pytest.mark.parametrize(
    "message",
    [
        one("F32", [0], [f"../{k}" for k in range(100_000)]),
        frame(b'{"a":' * 100_000, b""),
        frame(b"{}", b"", length=2**63),
        frame(b"{" + b" " * 1_000_000 + b"}", b""),
        frame(json.dumps({"n" * 1_000_000: {}}).encode(), b""),
        one("F32", [0, 2**63]),
        one("F32", [0, 2**40, 2**40]),
        one("F8_E8M0", [0]),
        one("F32", [0] * 50),
    ],
    ids=["tensors", "depth", "length", "spaces", "name", "size", "sizes", "dtype", "rank"],
)
def test_very_many_very_deep_very_long(message: bytes) -> None:
    for read in (wire.from_bytes, partial(wire.read, specs=[SPECS["fedgh"]])):
        found = attempt(WireError, partial(read, message))
        assert not isinstance(found, Refused) or oracle.harmless(found.why)
    assert isinstance(found, Refused)
