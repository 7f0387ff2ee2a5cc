import pytest

from fedgh.studies.poisoning import measure
from tests.support.records import a_round


def test_harm_worked_by_hand() -> None:
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
    harm = measure(records, named=[4, 2, 3], liars=1, always_honest=[1, 2])
    assert harm.accuracy == pytest.approx(0.7)
    assert harm.lies_left_out == 2 / 4  # of what it sent once; the other time it was rejected
    assert harm.truths_left_out == 1 / 10
    assert harm.rejected == 1
    assert measure(records, [4, 2, 3], 0, [0, 1, 2]).lies_left_out is None
