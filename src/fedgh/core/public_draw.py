"""The public samples of a round, for methods that use some of them in each round."""

from dataclasses import replace

import torch

from fedgh.core.types import Examples, Task


def public_draw(public: Examples, task: Task, number: int, count: int) -> Examples:
    """Return `count` random public samples, in their stored order; all if there are not more.

    The server and all clients get the same samples for the same `number`, such as a counter of
    rounds, so no list of samples is sent.
    """
    if count >= len(public):
        return public
    order = torch.randperm(len(public), generator=task.stream("public", round=number))
    return replace(public, index=public.index[order[:count].sort().values])
