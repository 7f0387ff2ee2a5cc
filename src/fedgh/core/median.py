"""Medians of vectors, number by number, in which some have more votes than others.

Votes are whole numbers, so that half of them is exact.
"""

import torch
from torch import Tensor


def median(rows: Tensor, votes: Tensor | None = None) -> Tensor:
    """Number by number, half of the votes are for less and half for more.

    Of two in the middle their mean. (torch's own takes the lower one.)
    """
    ordered, order = rows.sort(dim=0)
    reached = (rows.new_ones(len(rows)) if votes is None else votes)[order].cumsum(dim=0)
    half = reached[-1] / 2
    low = ordered.gather(0, (reached < half).sum(dim=0, keepdim=True))
    high = ordered.gather(0, (reached <= half).sum(dim=0, keepdim=True))
    return ((low + high) / 2)[0]


def median_of_others(rows: Tensor, votes: Tensor) -> Tensor:
    """For each row the median, number by number, of all the other rows.

    Without the row at a place, half of the votes is reached before that place, or where all votes
    come to that half and the votes of the row.
    """
    ordered, order = rows.T.contiguous().sort(dim=1)
    own = votes[order]
    reached = own.cumsum(dim=1)
    half = (votes.sum() - own) / 2
    place = torch.arange(len(rows))
    medians = torch.zeros_like(ordered)
    for right in (False, True):  # the lower and the upper one of two in the middle
        before = torch.searchsorted(reached, half, right=right)
        after = torch.searchsorted(reached, half + own, right=right)
        medians += ordered.gather(1, before.where(before < place, after)) / 2
    return torch.zeros_like(ordered).scatter(1, order, medians).T
