import pytest
import torch
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.types import Payload
from fedgh.errors import WireError

SPEC = {
    "classes": wire.Field(torch.int32, ("s",), classes=5),
    "means": wire.Field(torch.float32, ("s", 3)),
}


def good() -> Payload:
    return {"classes": torch.tensor([4, 0], dtype=torch.int32), "means": torch.ones(2, 3)}


def test_a_message_survives_the_journey() -> None:
    sent = good() | {"transposed": torch.arange(6.0).view(2, 3).T}
    assert_close(wire.from_bytes(wire.to_bytes(sent)), sent)
    assert wire.from_bytes(wire.to_bytes({})) == {}


def test_what_arrives_is_not_shared_with_the_sender() -> None:
    sent = good()
    wire.from_bytes(wire.to_bytes(sent))["means"].zero_()
    assert sent["means"].eq(1).all()


def test_bytes_are_those_of_the_tensors() -> None:
    assert wire.nbytes(good()) == 2 * 4 + 2 * 3 * 4
    assert wire.nbytes({}) == 0


def test_what_was_declared_is_accepted() -> None:
    wire.check(good(), SPEC)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"extra": torch.ones(1)}, "expected tensors"),
        ({"means": torch.ones(2, 3, dtype=torch.float64)}, "declared torch.float32"),
        ({"means": torch.ones(2, 4)}, "shape"),
        ({"means": torch.ones(3, 3)}, "shape"),
        ({"means": torch.ones(6)}, "shape"),
        ({"means": torch.full((2, 3), torch.nan)}, "not finite"),
        ({"means": torch.full((2, 3), torch.inf)}, "not finite"),
        ({"classes": torch.tensor([5, 0], dtype=torch.int32)}, "labels outside"),
        ({"classes": torch.tensor([-1, 0], dtype=torch.int32)}, "labels outside"),
        ({"classes": torch.tensor([2, 2], dtype=torch.int32)}, "twice"),
    ],
)
def test_anything_else_is_refused(change: Payload, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        wire.check(good() | change, SPEC)


def test_a_missing_tensor_is_refused() -> None:
    with pytest.raises(WireError, match="expected tensors"):
        wire.check({"classes": good()["classes"]}, SPEC)


@pytest.mark.parametrize("message", [b"", b"garbage", b"\xff" * 100, wire.to_bytes(good())[:-5]])
def test_garbage_is_refused(message: bytes) -> None:
    with pytest.raises(WireError, match="not a readable message"):
        wire.from_bytes(message)
