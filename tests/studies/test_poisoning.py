"""The effect of poisoning, worked by hand."""

import pytest

from fedgh.studies.poisoning import measure
from tests.support.records import a_round


def test_the_effect_of_poisoning_worked_by_hand() -> None:
    records = [
        a_round(1, participants=[0, 1, 2], dropped=[{"client": 0, "classes": [1, 2]}]),
        a_round(
            2,
            participants=[0, 1, 2],
            rejected=[{"client": 0, "reason": "no"}],
            dropped=[{"client": 2, "classes": [0]}],
            accuracy_per_client=[0.1, 0.6, 0.8],
        ),
    ]
    effect = measure(records, sent=[4, 2, 3], malicious=1, always_honest=[1, 2])
    assert effect.accuracy == pytest.approx(0.7)
    assert effect.poisoned_dropped == 2 / 4  # of its first upload; the second was rejected
    assert effect.honest_dropped == 1 / 10
    assert effect.rejected == 1
    assert measure(records, [4, 2, 3], 0, [0, 1, 2]).poisoned_dropped is None
