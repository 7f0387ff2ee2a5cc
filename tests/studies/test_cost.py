"""The cost of a run worked by hand."""

from pathlib import Path

import pytest

from fedgh.core.records import ClientInfo, Round
from fedgh.core.types import Task
from fedgh.models import extractor
from fedgh.models.cost import forward_flops, training_flops
from fedgh.studies.cost import measure
from fedgh.training import loop
from tests.support.records import a_round
from tests.support.tiny import quick

TASK = Task(num_classes=10, rep_dim=500, num_clients=2, rounds=2, seed=0, input_shape=(3, 32, 32))
CLIENTS = [
    ClientInfo(client=0, extractor="cnn1", classes={"a": 50, "b": 50}, train=80),
    ClientInfo(client=1, extractor="cnn5", classes={"b": 25, "c": 5, "d": 20}, train=40),
]


def record(number: int, failed: list[int], bytes_up: int) -> Round:
    return a_round(
        number,
        participants=[0, 1],
        bytes_up=bytes_up,
        failed=[{"client": client, "reason": "away"} for client in failed],
        seconds={"train": 20.0, "summarise": 1.0, "evaluate": 7.0, "server": 0.1, "total": 16.0},
    )


def test_shares_and_bytes_worked_by_hand() -> None:
    records = [record(1, [], 5 * 501 * 4), record(2, [1], 2 * 501 * 4)]
    out = measure(records, CLIENTS, TASK, epochs=10)
    assert out.extraction_share == pytest.approx(2 / 42)
    assert out.extraction_epochs == pytest.approx(2 / (40 / 10))
    assert out.server_share == pytest.approx(0.2 / 32)
    assert out.server_work_share == pytest.approx(0.2 / 42.2)
    assert out.pairs == 2 + 3 + 2
    assert out.server_seconds_per_pair == pytest.approx(0.2 / 7)
    assert out.bytes_up == out.bytes_up_formula == 7 * 501 * 4


def test_operations_are_counted_over_everybodys_samples() -> None:
    out = measure([record(1, [], 0)], CLIENTS, TASK, epochs=1)
    costs = {
        name: (forward_flops(extractor(name), TASK), training_flops(extractor(name), TASK))
        for name in ("cnn1", "cnn5")
    }
    # CNN-1 by hand: products of the two convolutions, three dense layers.
    layers = [16 * 75 * 28 * 28, 32 * 400 * 10 * 10, 800 * 2000, 2000 * 500, 500 * 10]
    # Backward: each layer twice, but nobody asks for the gradient of the images.
    assert costs["cnn1"] == (2 * sum(layers), 2 * (3 * sum(layers) - layers[0]))
    forward, training_ = (80 * costs["cnn1"][k] + 40 * costs["cnn5"][k] for k in (0, 1))
    assert out.extraction_epochs_counted == pytest.approx(forward / training_)
    assert 1 / 3 < out.extraction_epochs_counted < 1 / 2


def test_a_real_run_sends_what_the_formula_says(tmp_path: Path) -> None:
    experiment = quick("federation.participation=0.6")
    run = loop.run(experiment, tmp_path / "run")
    out = measure(run.records(), run.clients(), experiment.task, experiment.config.local.epochs)
    assert out.bytes_up == out.bytes_up_formula > 0
    assert out.pairs == 3 * 3 * 2  # rounds, participants, classes
    assert 0 < out.extraction_share < 1
