"""The summary of a run, worked by hand."""

import pytest

from fedgh import config
from fedgh.core.records import ClientInfo, Round
from fedgh.core.types import Task
from fedgh.runs.summary import summarise
from tests.support.records import a_round


def record(number: int, accuracy: float | None) -> Round:
    per_client = None if accuracy is None else [accuracy, None]
    costs = {"participants": [0, 1], "bytes_total": number * 1000, "seconds": {"total": 1.5}}
    return a_round(number, accuracy, accuracy_per_client=per_client, **costs)


def test_a_summary_worked_by_hand() -> None:
    settings = config.load("demo", ["federation.target=0.8"])
    records = [record(n, a) for n, a in enumerate([0.5, None, 0.85, 0.9, 0.7], 1)]
    clients = [
        ClientInfo(client=0, extractor="cnn1", classes={"a": 1, "b": 2}),
        ClientInfo(client=1, extractor="cnn1", classes={"c": 3}),
    ]
    task = Task(num_classes=10, rep_dim=500, num_clients=2, rounds=5, seed=3)
    out = summarise(settings, "mine", task, records, clients, None)
    assert (out.data, out.seed, out.rounds) == ("mine", 3, 5)
    assert out.accuracy == 0.7  # the last, not the best
    assert out.best_accuracy == 0.9
    assert (out.rounds_to_target, out.bytes_to_target) == (3, 3000)
    assert out.bytes_per_client_round == 5000 / 10
    assert out.paper_bytes_per_client_round == pytest.approx((24_008 + 24_008 - 2_004) / 2)
    assert out.seconds == 7.5
    assert (out.evaluated_clients, out.clients) == (1, 2)
    missed = summarise(
        config.load("demo", ["federation.target=1.0"]), "mine", task, records, clients, None
    )
    assert (missed.rounds_to_target, missed.bytes_to_target) == (None, None)
