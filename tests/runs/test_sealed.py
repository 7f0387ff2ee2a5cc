from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from fedgh.runs.sealed import pack, read_about, unpack

STATE = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}


def test_what_is_packed_comes_back() -> None:
    about, state = unpack(pack(STATE, client=3, round=12))
    assert about == {"client": 3, "round": 12}
    assert_close(state, STATE)


def test_equal_states_are_equal_bytes() -> None:
    assert pack(STATE, round=1, history="ab") == pack(dict(STATE), round=1, history="ab")


def test_any_flipped_bit_is_found_out() -> None:
    content = pack(STATE, round=1)
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytes([content[place] ^ (1 << bit)])
            damaged = content[:place] + flipped + content[place + 1 :]
            try:
                about, state = unpack(damaged)
            except ValueError:
                continue
            pytest.fail(f"bit {bit} of byte {place}: {about}, {state}")


@pytest.mark.parametrize("length", [0, 3, 8, 50, -1])
def test_what_was_cut_short_is_found_out(length: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(pack(STATE, round=1)[:length])


@pytest.mark.parametrize("about", [None, {"round": "7"}, {"fedgh": "{}"}, {"fedgh": "?"}])
def test_a_state_without_its_digest_is_refused(
    about: dict[str, str] | None, tmp_path: Path
) -> None:
    content = safetensors.torch.save(STATE, about)
    with pytest.raises(ValueError, match="its digest is missing"):
        unpack(content)
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(ValueError, match="its digest is missing"):
        read_about(tmp_path / "state")


def test_what_a_state_is_of_is_read_without_the_state(tmp_path: Path) -> None:
    content = pack(STATE, round=3)
    for length in (len(content), len(content) - 1, 9, 3):
        (tmp_path / "state").write_bytes(content[:length])
        if length == len(content):
            assert read_about(tmp_path / "state")["round"] == 3
        else:
            with pytest.raises(ValueError, match=r"cut short|not a state"):
                read_about(tmp_path / "state")
