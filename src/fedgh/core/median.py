"""Weighted coordinate-wise medians of vectors.

Votes (weights) are whole numbers, so that half of their sum is exact.
"""

import torch
from torch import Tensor


def median(rows: Tensor, votes: Tensor | None = None) -> Tensor:
    """Return the weighted median of each column.

    Of two middle values, the mean is returned (torch.median returns the lower one).
    """
    ordered, order = rows.sort(dim=0)
    reached = (rows.new_ones(len(rows)) if votes is None else votes)[order].cumsum(dim=0)
    half = reached[-1] / 2
    low = ordered.gather(0, (reached < half).sum(dim=0, keepdim=True))
    high = ordered.gather(0, (reached <= half).sum(dim=0, keepdim=True))
    return ((low + high) / 2)[0]


def median_of_others(rows: Tensor, votes: Tensor) -> Tensor:
    """Return for each row the weighted median of each column over all other rows.

    Let h be half of the votes of the other rows. In sorted order, the median is at the position
    where the cumulated votes reach h, if that position is before the row. Otherwise it is where
    they reach h plus the votes of the row.
    """
    ordered, order = rows.T.contiguous().sort(dim=1)
    own = votes[order]
    reached = own.cumsum(dim=1)
    half = (votes.sum() - own) / 2
    position = torch.arange(len(rows))
    medians = torch.zeros_like(ordered)
    for right in (False, True):  # the lower and the upper of two middle values
        before = torch.searchsorted(reached, half, right=right)
        after = torch.searchsorted(reached, half + own, right=right)
        medians += ordered.gather(1, before.where(before < position, after)) / 2
    return torch.zeros_like(ordered).scatter(1, order, medians).T
