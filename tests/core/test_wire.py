import pytest
import torch
from torch.testing import assert_close

from fedgh.core import wire
from fedgh.core.types import Payload
from fedgh.errors import WireError

NUMBER_OF_CLASSES = wire.Dim("classes", 5)
SPEC = {
    "classes": wire.Field(torch.int32, (NUMBER_OF_CLASSES,), classes=5),
    "means": wire.Field(torch.float32, (NUMBER_OF_CLASSES, 3)),
}


def valid_payload() -> Payload:
    return {"classes": torch.tensor([4, 0], dtype=torch.int32), "means": torch.ones(2, 3)}


def test_views_are_sent_as_they_are_read() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    views = {"conj": x.conj(), "neg": torch._neg_view(torch.ones(2)), "step": torch.arange(6)[::2]}
    sent = wire.from_bytes(wire.to_bytes(views))
    assert all(sent[name].equal(view) for name, view in views.items())
    with pytest.raises(NotImplementedError):
        wire.to_bytes({"nowhere": torch.ones(2, device="meta")})


def test_a_payload_is_unchanged_after_serialisation() -> None:
    sent = valid_payload() | {"transposed": torch.arange(6.0).view(2, 3).T}
    assert_close(wire.from_bytes(wire.to_bytes(sent)), sent)
    assert wire.from_bytes(wire.to_bytes({})) == {}


def test_a_received_payload_shares_no_memory_with_the_sender() -> None:
    sent = valid_payload()
    wire.from_bytes(wire.to_bytes(sent))["means"].zero_()
    assert sent["means"].eq(1).all()


def test_nbytes_counts_only_the_tensors() -> None:
    assert wire.nbytes(valid_payload()) == 2 * 4 + 2 * 3 * 4
    assert wire.nbytes({}) == 0


def test_a_payload_that_matches_its_declaration_is_accepted() -> None:
    wire.check(valid_payload(), SPEC)


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
def test_a_payload_that_differs_from_its_declaration_is_rejected(
    change: Payload, reason: str
) -> None:
    with pytest.raises(WireError, match=reason):
        wire.check(valid_payload() | change, SPEC)


def test_a_dimension_that_the_sender_chooses_has_a_maximum() -> None:
    spec = {"rows": wire.Field(torch.float32, (wire.Dim("rows", 2), 3))}
    wire.check({"rows": torch.ones(2, 3)}, spec)
    wire.check({"rows": torch.ones(0, 3)}, spec)
    with pytest.raises(WireError, match=r"declared .'rows up to 2', 3."):
        wire.check({"rows": torch.ones(3, 3)}, spec)


def test_values_and_norms_outside_of_their_bounds_are_rejected() -> None:
    means = torch.tensor([[3.0, 0, 4], [0, 0, 0]])
    wire.check(valid_payload() | {"means": means}, SPEC, max_norm=5)
    with pytest.raises(WireError, match=r"norm 5, above 4\.9"):
        wire.check(valid_payload() | {"means": means}, SPEC, max_norm=4.9)
    # The norm does not overflow, although the squares of these values exceed the largest float32.
    with pytest.raises(WireError, match=r"norm 5.196e\+38"):
        wire.check(valid_payload() | {"means": torch.full((2, 3), 3e38)}, SPEC, max_norm=1e6)
    within = {"x": wire.Field(torch.float32, (2,), at_least=0, at_most=1)}
    wire.check({"x": torch.tensor([0.0, 1])}, within)
    for bad, reason in ((-0.1, "below 0"), (1.1, "above 1")):
        with pytest.raises(WireError, match=reason):
            wire.check({"x": torch.tensor([0.5, bad])}, within)


def test_a_message_that_is_too_long_is_rejected_before_it_is_parsed() -> None:
    longest = {"classes": torch.arange(5).int(), "means": torch.ones(5, 3)}
    message = wire.to_bytes(longest)
    assert wire.read(message, [SPEC])["means"].shape == (5, 3)
    with pytest.raises(WireError, match="bytes; the declaration allows"):
        wire.read(b"garbage" * 1000, [SPEC])


def test_a_message_must_match_one_of_several_specs() -> None:
    kinds: list[wire.Spec] = [{}, SPEC, {"total": wire.Field(torch.float32, (1,))}]
    for sent in ({}, valid_payload(), {"total": torch.ones(1)}):
        assert wire.read(wire.to_bytes(sent), kinds).keys() == sent.keys()
    with pytest.raises(WireError, match="expected tensors"):
        wire.read(wire.to_bytes({"other": torch.ones(1)}), kinds)


def test_text_of_a_remote_party_in_errors_is_printable_and_short() -> None:
    name = "\x1b[31m../../etc\n" + "x" * 5000
    with pytest.raises(WireError) as caught:
        wire.check({name: torch.ones(1)}, SPEC)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 500


def test_a_missing_tensor_is_rejected() -> None:
    with pytest.raises(WireError, match="expected tensors"):
        wire.check({"classes": valid_payload()["classes"]}, SPEC)


@pytest.mark.parametrize(
    "message", [b"", b"garbage", b"\xff" * 100, wire.to_bytes(valid_payload())[:-5]]
)
def test_bytes_that_are_not_a_message_are_rejected(message: bytes) -> None:
    with pytest.raises(WireError, match="not a readable message"):
        wire.from_bytes(message)
