"""The public samples of a round: the same for all parties, others in another round."""

import torch

from fedgh.core.public_draw import public_draw
from fedgh.core.types import Examples, Task

TASK = Task(num_classes=2, rep_dim=3, num_clients=1, rounds=9, seed=0)
PUBLIC = Examples(torch.zeros(20, 1), torch.full((20,), -1), torch.arange(3, 18))


def test_all_parties_draw_the_same_samples_in_their_stored_order() -> None:
    one, other = (public_draw(PUBLIC, TASK, 1, 6).index for _ in range(2))
    assert one.equal(other)
    assert one.equal(one.sort().values)
    assert len(set(one.tolist()) & set(PUBLIC.index.tolist())) == 6


def test_each_round_has_its_own_samples_and_all_are_drawn_at_some_time() -> None:
    draws = [set(public_draw(PUBLIC, TASK, number, 6).index.tolist()) for number in range(30)]
    assert draws[0] != draws[1]
    assert set.union(*draws) == set(PUBLIC.index.tolist())


def test_as_many_as_there_are_or_more_means_all() -> None:
    assert public_draw(PUBLIC, TASK, 1, 15) is PUBLIC
    assert public_draw(PUBLIC, TASK, 1, 16) is PUBLIC
