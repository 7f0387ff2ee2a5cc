"""A participant's ledger, and what it refuses on its behalf."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedgh import config
from fedgh.core.types import Task
from fedgh.errors import ConfigError, RunError
from fedgh.flower import NodeConfig, Participant, client_app, engine, node
from fedgh.flower.bound import Bound, read_bound
from fedgh.privacy.accounting import noise_multiplier
from fedgh.privacy.ledger import Ledger, OverBoundError
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment, loop
from fedgh.training.experiment import Experiment
from tests.flower.local import FIRST_NODE, House
from tests.support.tiny import numbers, quick, states

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
    straight = loop.run(prepared, tmp_path / "serial")
    house = House(tmp_path / "house", prepared)
    run = house.run()
    assert numbers(run) == numbers(straight)
    assert states(run)["server.safetensors"] == states(straight)["server.safetensors"]


def failures(house: House, out: str = "run") -> list[list[str]]:
    """Why clients have failed in each round of a run."""
    return [[f.reason for f in record.failed] for record in house.run(out).records()]


def bounded(path: Path, prepared: Experiment, own: dict[str, str], client: int = 0) -> House:
    """A federation in which one client has settings of its own."""
    house = House(path, prepared)
    house.grid.nodes[FIRST_NODE + client].config.update(own)  # type: ignore[attr-defined]
    return house


def test_a_bound_outlives_the_run_and_its_name(tmp_path: Path) -> None:
    """Three rounds cost 4; a bound of 3.5 is reached before the third, also in another run."""
    house = bounded(tmp_path, quick(*PRIVATE), {"max-epsilon": "3.5"})
    over = ["this participant's bound of ε = 3.5 would be passed"]
    assert failures(house) == [[], [], over]
    assert failures(house, "another") == [over] * 3
    (ledger,) = (tmp_path / "states").glob("*.json")
    assert json.loads(ledger.read_text())["releases"] == 2


def test_another_number_in_another_federation_finds_the_same_budget(tmp_path: Path) -> None:
    own = {"max-epsilon": "3.5", "state": str(tmp_path / "states")}
    assert failures(bounded(tmp_path / "a", quick(*PRIVATE), own))[:2] == [[], []]
    other = bounded(tmp_path / "b", quick(*PRIVATE, "federation.rounds=1"), own, client=1)
    assert failures(other) == [["this participant's bound of ε = 3.5 would be passed"]]


@pytest.mark.parametrize(
    ("words", "own", "reason"),
    [
        ([], {"max_epsilon": "3"}, "sends nothing without privacy"),
        ([], {"protects": "client"}, "sends nothing without privacy"),
        (PRIVATE, {"protects": "client"}, "takes part with privacy.protects = 'client'"),
        (PRIVATE, {"max-epsilon": "9", "protects": "client"}, "privacy.protects = 'client'"),
    ],
)
def test_less_than_the_participant_asks_for_is_refused(
    words: list[str], own: dict[str, str], reason: str, tmp_path: Path
) -> None:
    found = failures(bounded(tmp_path, quick(*words, "federation.rounds=1"), own))
    assert len(found[0]) == 1
    assert reason in found[0][0]


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"max-epsilom": 1.0}, "max-epsilom is no setting; did you mean max-epsilon?"),
        ({"epsilon": 1.0}, "epsilon is no setting; did you mean max-epsilon?"),
        ({"MAX_EPS": 1.0}, "max-eps is no setting; did you mean max-epochs?"),
        ({"protect": "client"}, "protect is no setting; did you mean protects?"),
        ({"states": "elsewhere"}, "states is no setting; did you mean state?"),
        ({"protects": "clients"}, "protects = 'clients': Input should be"),
        *(({"max-epsilon": bad}, "max-epsilon = ") for bad in ("nan", "inf", 0, -1.0, "", True)),
        *(({"delta": bad}, "delta = ") for bad in (0, 1, "nan", -1e-5, "small", 1e-16)),
    ],
)
def test_a_bound_that_cannot_be_meant_is_refused(own: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        read_bound({"client": 0, **own})


def test_other_settings_belong_to_the_participant() -> None:
    own: NodeConfig = {
        "client": 0,
        "state": "s",
        "app": "a:b",
        "data": "d",
        "dir": "x",
        "path": "p",
    }
    assert read_bound(own) == Bound()
    assert read_bound({**own, "Max_Epsilon": "2", "delta": 1e-6}).max_epsilon == 2.0


def test_a_slip_in_its_settings_keeps_a_participant_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = bounded(tmp_path, quick(*PRIVATE, "federation.rounds=1"), {"max-epsilom": "1"})
    assert failures(house) == [["ConfigError; the participant's own log says more"]]
    assert "did you mean max-epsilon?" in caplog.text


@pytest.mark.parametrize(
    ("line", "problem"),
    [("max-epsilon = 4", "without spaces around the ="), ("protect=1", "did you mean protects?")],
)
def test_a_node_is_not_started_with_such_settings(line: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "node.sh").write_text("touch started")
    (tmp_path / "node.conf").write_text(f'# ours\nclient=0 data="a b"\n{line}\n')
    with pytest.raises(ConfigError, match=re.escape(problem)):
        node.join(tmp_path, print)
    assert not (tmp_path / "started").exists()


def test_who_sends_nothing_spends_nothing(tmp_path: Path) -> None:
    prepared = quick("method.name=standalone", "federation.rounds=1")
    assert failures(bounded(tmp_path, prepared, {"max-epsilon": "1"})) == [[]]
    assert not (tmp_path / "states" / "privacy.json").exists()


ALONE = ["method.name=standalone", "federation.rounds=1", "federation.clients=1"]
ALONE += ["data.classes_per_client=10"]


@pytest.mark.parametrize(
    ("words", "own", "told"),
    [
        ([], {}, True),
        (["privacy.protects=client"], {}, False),
        ([], {"protects": "client"}, False),
        ([], {"max-epsilon": "0.001"}, False),
    ],
)
def test_the_loss_is_told_only_where_nobody_asks_for_privacy(
    words: list[str], own: dict[str, str], told: bool, tmp_path: Path
) -> None:
    """Whatever the method: also one that uploads nothing has a loss."""
    (record,) = bounded(tmp_path, quick(*ALONE, *words), own).run().records()
    assert (record.train_loss is not None) == told
    assert record.accuracy is not None


def test_nor_is_it_told_in_a_simulation(tmp_path: Path) -> None:
    run = loop.run(quick(*ALONE, "privacy.protects=sample"), tmp_path / "run")
    assert run.records()[0].train_loss is None


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


@pytest.mark.parametrize(("rounds", "breaks"), [(3, [5]), (4, [5, 1])])
def test_a_run_stops_before_lost_rounds_cost_more_than_was_promised(
    rounds: int, breaks: list[int], tmp_path: Path
) -> None:
    """What a server had asked before it was killed counts, whatever it asks afterwards."""
    settings: dict[str, dict[str, Any]] = {
        "federation": {"clients": 2, "rounds": rounds},
        "data": {"name": "private", "classes": ["no", "yes"]},
        "model": {"rep_dim": 3},
        "privacy": {"protects": "client", "epsilon": 4.0},
        "run": {"checkpoint_every": 2},
    }
    prepared = experiment.prepare(config.parse(settings))
    house = House(tmp_path, prepared, [client_app(make_client)])
    for k in range(2):  # on two machines
        own = {"max-epsilon": 4.0, "state": str(tmp_path / f"states-{k}")}
        house.grid.nodes[FIRST_NODE + k].config.update(own)  # type: ignore[attr-defined]
    for after in breaks:  # answers: in the third round; in that round again
        house.grid.break_after, house.grid.delivered = after, 0
        with pytest.raises(KeyboardInterrupt):
            house.run()
        house.grid.waiting.clear()
    house.grid.break_after, house.grid.delivered = 2**62, 0
    for _ in range(2):
        with pytest.raises(RunError, match=r"one more would bring its ε to .* above .* = 4\."):
            house.run()
    assert house.grid.delivered == 0, "nothing more was asked"
    run = RunFolder(tmp_path / "run")
    assert [record.round for record in run.records()] == [1, 2]
    assert all((record.epsilon or 0) <= 4 for record in run.records())
    pages = [(tmp_path / f"states-{k}" / "privacy.json").read_text() for k in range(2)]
    assert [json.loads(page)["releases"] for page in pages] == [3, 2], "one was lost on its way"


def test_a_run_that_loses_nothing_spends_all_that_was_promised(tmp_path: Path) -> None:
    prepared = quick("privacy.protects=client", "privacy.epsilon=4", "federation.rounds=3")
    run = loop.run(prepared, tmp_path / "run")
    assert run.records()[-1].epsilon == pytest.approx(4)


@pytest.mark.parametrize("content", ["", "[]", '{"0": -1}', '{"0": "x"}', '{"a": 1}'])
def test_an_account_that_was_damaged_is_refused(content: str, tmp_path: Path) -> None:
    run = loop.run(quick(*PRIVATE, "federation.rounds=1"), tmp_path / "run")
    (run.path / "asked.json").write_text(content)
    with pytest.raises(RunError, match=r"asked\.json"):
        loop.resume(run.path)
