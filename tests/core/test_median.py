from statistics import median as of_numbers

import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.median import median, median_of_others

VOTES = [[1, 1, 1], [1, 1, 1, 1], [1, 2, 3, 4, 5, 6], [1, 1, 9, 1], [3, 2, 2, 3, 1]]


def by_hand(rows: Tensor, votes: list[int]) -> Tensor:
    """Whoever has two votes is there twice."""
    there = [row for row, vote in zip(rows.tolist(), votes, strict=True) for _ in range(vote)]
    return torch.tensor([of_numbers(column) for column in zip(*there, strict=True)]).double()


def some_rows(number: int) -> Tensor:
    """Many of their numbers are the same."""
    rng = torch.Generator().manual_seed(number)
    return torch.randint(0, 4, (number, 50), generator=rng).double()


def test_whoever_has_two_votes_counts_twice() -> None:
    for votes in VOTES:
        rows = some_rows(len(votes))
        assert_close(median(rows, torch.tensor(votes).double()), by_hand(rows, votes))
    assert median(torch.tensor([4.0, 1.0, 2.0, 9.0])) == 3.0


def test_the_others_are_all_but_one() -> None:
    for votes in VOTES:
        rows = some_rows(len(votes))
        found = median_of_others(rows, torch.tensor(votes).double())
        for one in range(len(votes)):
            others = [k for k in range(len(votes)) if k != one]
            assert_close(found[one], by_hand(rows[others], [votes[k] for k in others]))
