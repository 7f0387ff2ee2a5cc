"""A participant's ledger, and what it refuses on its behalf."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgh import config, experiment, training
from fedgh.core.types import Task
from fedgh.errors import RunError
from fedgh.experiment import Experiment
from fedgh.flower import NodeConfig, Participant, client_app, engine
from fedgh.privacy.accounting import noise_multiplier
from fedgh.privacy.ledger import Ledger, OverBoundError
from tests.flower.local import House
from tests.tiny import numbers, quick, states

PRIVATE = ["privacy.protects=sample", "privacy.epsilon=4"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "GATHERING", 0.0)


def test_it_counts_up_to_the_bound_and_is_found_again(tmp_path: Path) -> None:
    path, z = tmp_path / "ledger.json", noise_multiplier(4.0, 1e-5, 3)
    for _ in range(3):
        Ledger(path, 4.0, 1e-5).spend(z)
    before = path.read_bytes()
    assert json.loads(before) == {"releases": 3, "spent": pytest.approx(3 / z**2)}
    with pytest.raises(OverBoundError, match="bound of ε = 4 would be passed"):
        Ledger(path, 4.0, 1e-5).spend(z)
    assert path.read_bytes() == before
    Ledger(path, 5.0, 1e-5).spend(z)
    with pytest.raises(OverBoundError):
        Ledger(path, 5.0, 1e-9).spend(z)  # a smaller δ needs a larger ε


@pytest.mark.parametrize("content", ["", "{", '{"spent": -1.0}', '{"spent": NaN}', '{"other": 1}'])
def test_a_damaged_ledger_lets_nothing_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)
    with pytest.raises(RunError, match="nothing is released"):
        Ledger(path, 100.0, 1e-5).spend(10.0)
    assert path.read_text() == content


def test_a_private_federation_gives_the_same_bits_over_messages(tmp_path: Path) -> None:
    prepared = quick(*PRIVATE, "method.name=fedproto", "privacy.counts=secret")
    straight = training.run(prepared, tmp_path / "serial")
    house = House(tmp_path / "house", prepared)
    run = house.run()
    assert numbers(run) == numbers(straight)
    assert states(run)["server.safetensors"] == states(straight)["server.safetensors"]


def failures(house: House, out: str = "run") -> list[list[str]]:
    """Why clients have failed in each round of a run."""
    return [[f["reason"] for f in record["failed"]] for record in house.run(out).records()]


def bounded(path: Path, prepared: Experiment, **own: str) -> House:
    """A federation in which client 0 has a bound of its own."""
    house = House(path, prepared)
    house.grid.nodes[1000].config.update(own)  # type: ignore[attr-defined]
    return house


def test_a_bound_outlives_the_run_and_its_name(tmp_path: Path) -> None:
    """Three rounds cost 4; a bound of 3.5 is reached before the third, also in another run."""
    house = bounded(tmp_path, quick(*PRIVATE), **{"max-epsilon": "3.5"})
    over = ["this participant's bound of ε = 3.5 would be passed"]
    assert failures(house) == [[], [], over]
    assert failures(house, "another") == [over] * 3
    (ledger,) = (tmp_path / "states").glob("privacy-*.json")
    assert ledger.name == "privacy-client-0.json"
    assert json.loads(ledger.read_text())["releases"] == 2


@pytest.mark.parametrize(
    ("words", "own", "reason"),
    [
        ([], {"max_epsilon": "3"}, "sends nothing without privacy"),
        (PRIVATE, {"max-epsilon": "9", "protects": "client"}, "protects = 'client' only"),
    ],
)
def test_less_than_the_participant_asks_for_is_refused(
    words: list[str], own: dict[str, str], reason: str, tmp_path: Path
) -> None:
    found = failures(bounded(tmp_path, quick(*words, "federation.rounds=1"), **own))
    assert len(found[0]) == 1
    assert reason in found[0][0]


def test_who_sends_nothing_spends_nothing(tmp_path: Path) -> None:
    prepared = quick("method.name=standalone", "federation.rounds=1")
    assert failures(bounded(tmp_path, prepared, **{"max-epsilon": "1"})) == [[]]


def make_client(task: Task, _: NodeConfig) -> Participant:
    x = torch.arange(120.0).view(30, 4) / 60
    return Participant(nn.Linear(4, task.rep_dim), (x, torch.arange(30) % 2))


def test_real_participants_draw_noise_that_the_server_cannot(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "federation": {"clients": 1, "rounds": 1},
        "data": {"name": "private", "classes": ["no", "yes"]},
        "model": {"rep_dim": 3},
        "privacy": {"protects": "client"},
    }
    prepared = experiment.prepare(config.parse(settings))

    def sent(place: str) -> bytes:
        house = House(tmp_path / place, prepared, [client_app(make_client)])
        run = house.run()
        return (run.path / "means" / "000001.safetensors").read_bytes()

    assert sent("a") != sent("b")
