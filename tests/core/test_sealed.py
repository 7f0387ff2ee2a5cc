import pytest
import safetensors.torch
import torch
from torch.testing import assert_close

from fedgh.core.sealed import pack, unpack

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
            # Only where it looks like a state from before there were digests, and nothing is lost.
            assert about.keys() != {"round"}
            assert_close(state, STATE)


@pytest.mark.parametrize("length", [0, 3, 8, 50, -1])
def test_what_was_cut_short_is_found_out(length: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(pack(STATE, round=1)[:length])


def test_a_state_from_before_there_were_digests_is_taken_as_it_is() -> None:
    about, state = unpack(safetensors.torch.save(STATE, {"round": "7"}))
    assert about == {"round": "7"}
    assert_close(state, STATE)
    assert unpack(safetensors.torch.save(STATE))[0] == {}
