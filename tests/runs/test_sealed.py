"""States as bytes: damage, truncation and missing digests are detected."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from fedgh.runs.sealed import pack, read_metadata, unpack

STATE = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}


def test_unpack_returns_what_was_packed() -> None:
    metadata, state = unpack(pack(STATE, client=3, round=12))
    assert metadata == {"client": 3, "round": 12}
    assert_close(state, STATE)


def test_equal_states_are_equal_bytes() -> None:
    assert pack(STATE, round=1, history="ab") == pack(dict(STATE), round=1, history="ab")


def test_every_flipped_bit_is_detected() -> None:
    content = pack(STATE, round=1)
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytes([content[position] ^ (1 << bit)])
            damaged = content[:position] + flipped + content[position + 1 :]
            try:
                metadata, state = unpack(damaged)
            except ValueError:
                continue
            pytest.fail(f"bit {bit} of byte {position}: {metadata}, {state}")


@pytest.mark.parametrize("length", [0, 3, 8, 50, -1])
def test_a_truncated_state_is_detected(length: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(pack(STATE, round=1)[:length])


@pytest.mark.parametrize("metadata", [None, {"round": "7"}, {"fedgh": "{}"}, {"fedgh": "?"}])
def test_a_state_without_its_digest_is_refused(
    metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    content = safetensors.torch.save(STATE, metadata)
    with pytest.raises(ValueError, match="its digest is missing"):
        unpack(content)
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ValueError, match="its digest is missing"):
        read_metadata(tmp_path / "state")


def test_metadata_are_read_without_the_tensors_unless_the_file_is_truncated(tmp_path: Path) -> None:
    content = pack(STATE, round=3)
    for length in (len(content), len(content) - 1, 9, 3):
        (tmp_path / "state").write_bytes(content[:length])
        if length == len(content):
            assert read_metadata(tmp_path / "state")["round"] == 3
        else:
            with pytest.raises(ValueError, match=r"cut short|not a state"):
                read_metadata(tmp_path / "state")
