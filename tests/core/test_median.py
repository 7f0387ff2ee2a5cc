from statistics import median as median_of_list

import torch
from torch import Tensor
from torch.testing import assert_close

from fedgh.core.median import median, median_of_others

VOTES = [[1, 1, 1], [1, 1, 1, 1], [1, 2, 3, 4, 5, 6], [1, 1, 9, 1], [3, 2, 2, 3, 1]]


def brute_force(rows: Tensor, votes: list[int]) -> Tensor:
    """Return the median of rows that are repeated as often as they have votes."""
    repeated = [row for row, vote in zip(rows.tolist(), votes, strict=True) for _ in range(vote)]
    return torch.tensor([median_of_list(column) for column in zip(*repeated, strict=True)]).double()


def some_rows(number: int) -> Tensor:
    """Return rows with many ties."""
    rng = torch.Generator().manual_seed(number)
    return torch.randint(0, 4, (number, 50), generator=rng).double()


def test_median_equals_that_of_repeated_rows() -> None:
    for votes in VOTES:
        rows = some_rows(len(votes))
        assert_close(median(rows, torch.tensor(votes).double()), brute_force(rows, votes))
    assert median(torch.tensor([4.0, 1.0, 2.0, 9.0])) == 3.0


def test_median_of_others_leaves_out_each_row_in_turn() -> None:
    for votes in VOTES:
        rows = some_rows(len(votes))
        found = median_of_others(rows, torch.tensor(votes).double())
        for row in range(len(votes)):
            others = [k for k in range(len(votes)) if k != row]
            assert_close(found[row], brute_force(rows[others], [votes[k] for k in others]))
