"""Secure aggregation between real processes: the others recover from a client that dies."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from fedgh.core.server import Engine
from fedgh.core.types import Payload, Reply, part
from fedgh.flower.deployment import deployed, follow
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.training.experiment import Experiment
from tests.flower.absent import PresetReplies
from tests.flower.real import federation, wait_until
from tests.support.tiny import quick
from tests.support.unmasked import Unmasked

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("deployment"),  # two federations at a time miss deadlines
]


def test_a_client_that_dies_after_its_shares_is_recovered_from(tmp_path: Path) -> None:
    """Client 3 is killed as soon as it has computed its shares; three of four clients stay."""
    experiment = quick(
        *("federation.clients=4", "federation.rounds=1", "secure.enabled=true"),
        *(
            "method.name=lg_fedavg",
            "data.classes_per_client=5",
            "run.deadline=200",
            "run.secure_deadline=200",
        ),
    )
    folder, out = federation(tmp_path / "federation", experiment), tmp_path / "federation" / "run"
    with deployed(folder, 4, print) as deployment:
        run = deployment.train(out)
        states = folder.participant(3) / "states"

        def has_sent_shares() -> bool:
            files = states.glob("experiments/*/client-3/secure.json")
            return any(len(json.loads(file.read_text())["answered"]) == 2 for file in files)

        wait_until(has_sent_shares)
        registered = json.loads(folder.processes.read_text())["processes"]
        os.killpg(registered["node-3"][0], signal.SIGKILL)
        shutil.rmtree(states)  # its node comes back, without the keys of the round
        (record,) = follow(deployment, run, out, print).records()
    assert record.discarded is None
    assert [problem.client for problem in record.failed] == [3]

    def make(of: Experiment, folder: RunFolder, done: int, state: Payload) -> Engine:
        engine = loop.plain_engine(of, folder, done, state)
        return Unmasked(PresetReplies(engine, {(3, 1): Reply(3, 1, error="lost")}))

    oracle = loop.run(experiment, tmp_path / "oracle", make_engine=make)
    assert record.accuracies[:3] == oracle.records()[0].accuracies[:3]
    assert record.bytes_up == oracle.records()[0].bytes_up
    ours, expected = (part(run.committed()[1], "server.") for run in (RunFolder(out), oracle))
    assert ours.keys() == expected.keys()
    assert all(ours[name].equal(expected[name]) for name in ours)
