from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.subnet import CoordinateMean, Cut, Sizes, Window, cut, put, sizes_of, take
from fedgh.core.types import Payload
from fedgh.errors import ConfigError

OLD = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0]])}
WIDE = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
NARROW = {"w": torch.tensor([[5.0]])}

CNN: dict[str, tuple[int, ...]] = {
    "conv1.weight": (4, 3, 5, 5),
    "conv1.bias": (4,),
    "conv2.weight": (6, 4, 5, 5),
    "conv2.bias": (6,),
    "fc.weight": (10, 24),  # six channels of 2x2 pixels
    "fc.bias": (10,),
    "header.weight": (2, 10),
}
NARROWER = CNN | {
    "conv1.weight": (2, 3, 5, 5),
    "conv1.bias": (2,),
    "conv2.weight": (3, 2, 5, 5),
    "conv2.bias": (3,),
    "fc.weight": (5, 12),
    "fc.bias": (5,),
    "header.weight": (2, 5),
}


def cut_for(part: Payload, shift: int = 0) -> Cut:
    return cut(sizes_of(OLD), sizes_of(part), shift)


def units(window: Window) -> list[int]:
    """Return the numbers of the units in a window."""
    numbers: list[int] = torch.arange(1000)[window].tolist()
    return numbers


def counted(whole: Sizes) -> Payload:
    """Return tensors filled with 0, 1, 2, ..."""
    return {name: torch.arange(float(prod(shape))).view(shape) for name, shape in whole.items()}


def mean(*parts: tuple[Payload, Cut, float]) -> Tensor:
    total = CoordinateMean(sizes_of(OLD))
    for payload, part_cut, weight in parts:
        total.add(payload, part_cut, weight)
    return total.value(OLD)["w"]


def test_each_number_is_the_mean_over_the_parts_that_contain_it() -> None:
    both = mean((WIDE, cut_for(WIDE), 1), (NARROW, cut_for(NARROW), 1))
    assert both.tolist() == [[3, 2], [3, 4]]
    assert mean((NARROW, cut_for(NARROW), 1)).tolist() == [[5, 20], [30, 40]]
    assert mean().equal(OLD["w"])


def test_parts_are_averaged_by_their_weights() -> None:
    both = mean((WIDE, cut_for(WIDE), 1), (NARROW, cut_for(NARROW), 3))
    assert both.tolist() == [[4, 2], [3, 4]]
    assert mean((WIDE, cut_for(WIDE), 2), (NARROW, cut_for(NARROW), 0)).equal(WIDE["w"])
    assert mean((WIDE, cut_for(WIDE), 0)).equal(OLD["w"])


def test_a_shifted_part_is_averaged_at_its_position() -> None:
    assert mean((NARROW, cut_for(NARROW, shift=1), 1)).tolist() == [[10, 20], [30, 5]]


def test_numbers_that_were_not_sent_keep_their_bits() -> None:
    old = {"w": torch.rand(5, 7), "b": torch.rand(5), "scale": torch.tensor(0.1)}
    part = {"w": torch.rand(2, 7), "b": torch.rand(2)}
    part_cut = cut(sizes_of(old), sizes_of(part | {"scale": old["scale"]}), shift=4)
    total = CoordinateMean(sizes_of(old))
    total.add(part, part_cut, 0.3)
    new = total.value(old)
    rows = [4, 0]
    assert new["w"][1:4].equal(old["w"][1:4])
    assert new["scale"].equal(old["scale"])
    assert_close(new["w"][rows], part["w"])
    assert_close(new["b"][rows], part["b"])


def test_the_mean_is_taken_in_double_precision() -> None:
    large, small = torch.tensor([[2.0**24]]), torch.tensor([[1.0]])
    many = [({"w": value}, cut_for(NARROW), 1.0) for value in (large, *[small] * 3, -large)]
    assert mean(*many)[0, 0] == torch.tensor(3 / 5)


def test_cuts_are_windows_of_units_that_match_between_layers() -> None:
    part_cut = cut(CNN, NARROWER)
    assert [units(window) for window in part_cut["conv2.weight"][:2]] == [[0, 1, 2], [0, 1]]
    assert units(part_cut["conv1.weight"][1]) == [0, 1, 2]  # colour channels are not cut
    assert units(part_cut["header.weight"][0]) == [0, 1]  # nor are classes
    rolled = cut(CNN, NARROWER, shift=4)
    assert units(rolled["conv2.bias"][0]) == units(rolled["conv2.weight"][0]) == [4, 5, 0]
    assert units(rolled["conv1.bias"][0]) == units(rolled["conv2.weight"][1]) == [0, 1]
    assert units(rolled["header.weight"][0]) == [0, 1]


def test_the_inputs_of_one_channel_stay_together() -> None:
    assert units(cut(CNN, NARROWER)["fc.weight"][1]) == list(range(12))
    rolled = cut(CNN, NARROWER, shift=4)["fc.weight"][1]
    assert units(rolled) == [*range(16, 24), *range(4)]


def test_take_and_put_copy_the_selected_numbers() -> None:
    whole = counted(CNN)
    part_cut = cut(CNN, NARROWER, shift=1)
    part = take(whole, part_cut)
    assert sizes_of(part) == NARROWER
    assert part["conv1.bias"].tolist() == [1, 2]
    assert part["header.weight"].tolist() == [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15]]
    doubled = put(whole, {name: 2 * tensor for name, tensor in part.items()}, part_cut)
    assert doubled["conv1.bias"].tolist() == [0, 2, 4, 3]
    assert whole["conv1.bias"].tolist() == [0, 1, 2, 3]


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.integers(0, 5), min_size=1, unique=True), shift=st.integers(0, 6))
def test_windows_and_listed_rows_select_the_same_numbers_as_indexing(
    rows: list[int], shift: int
) -> None:
    """As in HeteroFL's header: the rows of own classes, in a window of columns."""
    whole: dict[str, tuple[int, ...]] = {"w": (6, 7)}
    (_, columns), numbers = cut(whole, {"w": (6, 3)}, shift)["w"], counted(whole)["w"]
    chosen: Cut = {"w": (torch.tensor(rows), columns)}
    expected = [[7.0 * row + (shift + unit) % 7 for unit in range(3)] for row in rows]
    assert take({"w": numbers}, chosen)["w"].tolist() == expected
    total = CoordinateMean(whole)
    total.add({"w": -torch.tensor(expected)}, chosen, 2)
    mean = total.value({"w": numbers})["w"].tolist()
    for row in range(6):
        for unit in range(7):
            sent = row in rows and (unit - shift) % 7 < 3
            assert mean[row][unit] == (-1 if sent else 1) * (7 * row + unit)


def test_gradients_of_a_part_reach_the_whole_network() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    take({"w": weight}, cut_for(NARROW, shift=1))["w"].sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0, 0], [0, 1]]


SIZES = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=4)


@settings(max_examples=50, deadline=None)
@given(sizes=SIZES, shift=st.integers(0, 20))
def test_putting_a_part_back_changes_nothing(sizes: list[tuple[int, int]], shift: int) -> None:
    whole, part = {"w": tuple(map(max, sizes))}, {"w": tuple(map(min, sizes))}
    part_cut, numbers = cut(whole, part, shift), counted(whole)
    taken = take(numbers, part_cut)
    assert sizes_of(taken) == part
    assert put(numbers, taken, part_cut)["w"].equal(numbers["w"])
    total = CoordinateMean(whole)
    total.add(taken, part_cut, 1)
    assert total.value(numbers)["w"].equal(numbers["w"])


@given(size=st.integers(1, 12), kept=st.integers(1, 12))
def test_over_all_shifts_each_unit_is_cut_equally_often(size: int, kept: int) -> None:
    size, kept = max(size, kept), min(size, kept)
    windows = [cut({"b": (size,)}, {"b": (kept,)}, shift)["b"][0] for shift in range(size)]
    assert torch.tensor([*map(units, windows)]).flatten().bincount().tolist() == [kept] * size


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({}, "only the whole network has a tensor 'w'"),
        ({"w": (2, 2), "extra": (1,)}, "only the part has a tensor 'extra'"),
        ({"w": (2, 3)}, r"'w' is \(2, 3\) in the part, which does not fit into \(2, 2\)"),
        ({"w": (2,)}, r"'w' is \(2,\) in the part"),
    ],
)
def test_cut_names_the_tensor_that_does_not_fit(part: Sizes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut(sizes_of(OLD), part)


def test_cut_rejects_incomplete_channels() -> None:
    with pytest.raises(
        ConfigError, match=r"'fc.weight' has 13 inputs in the part, no multiple of 4 per"
    ):
        cut(CNN, NARROWER | {"fc.weight": (5, 13)})
