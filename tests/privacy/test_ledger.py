"""A participant's ledger and bounds: counted releases, rejected requests, invalid settings."""

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
from fedgh.flower import ClientSpec, NodeConfig, client_app, engine, node
from fedgh.flower.bound import Bound, read_bound
from fedgh.privacy.accounting import noise_multiplier
from fedgh.privacy.ledger import Ledger, OverBoundError
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment, loop
from fedgh.training.experiment import Experiment
from tests.flower.local import FIRST_NODE, LocalFederation
from tests.support.states import states
from tests.support.tiny import numbers, quick

PRIVATE = ["privacy.protects=sample", "privacy.epsilon=4"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.0)
    monkeypatch.setattr(engine, "MIN_FIRST_ROUND", 0.0)


def test_ledger_counts_releases_across_instances_up_to_the_bound(tmp_path: Path) -> None:
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
def test_a_damaged_ledger_raises_and_stays_unchanged(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)
    with pytest.raises(RunError, match="nothing is released"):
        Ledger(path, 100.0, 1e-5).spend(10.0)
    assert path.read_text() == content


def test_flower_gives_the_same_bits_as_serial_with_privacy(tmp_path: Path) -> None:
    prepared = quick(*PRIVATE, "method.name=fedproto", "privacy.counts=secret")
    straight = loop.run(prepared, tmp_path / "serial")
    federation = LocalFederation(tmp_path / "federation", prepared)
    run = federation.run()
    assert numbers(run) == numbers(straight)
    assert states(run)["server.safetensors"] == states(straight)["server.safetensors"]


def failures(federation: LocalFederation, out: str = "run") -> list[list[str]]:
    """Return the reasons of failed clients in each round of a run."""
    return [[f.reason for f in record.failed] for record in federation.run(out).records()]


def bounded(
    path: Path, prepared: Experiment, own: dict[str, str], client: int = 0
) -> LocalFederation:
    """Return a federation in which one client has settings of its own."""
    federation = LocalFederation(path, prepared)
    federation.grid.nodes[FIRST_NODE + client].config.update(own)  # type: ignore[attr-defined]
    return federation


def test_a_bound_applies_across_runs(tmp_path: Path) -> None:
    """Three rounds cost ε = 4; a bound of 3.5 is reached before the third, also for a new run."""
    federation = bounded(tmp_path, quick(*PRIVATE), {"max-epsilon": "3.5"})
    exceeded = ["this participant's bound of ε = 3.5 would be passed"]
    assert failures(federation) == [[], [], exceeded]
    assert failures(federation, "another") == [exceeded] * 3
    (ledger,) = (tmp_path / "states").glob("*.json")
    assert json.loads(ledger.read_text())["releases"] == 2


def test_one_state_folder_is_one_budget_for_all_federations_and_client_numbers(
    tmp_path: Path,
) -> None:
    own = {"max-epsilon": "3.5", "state": str(tmp_path / "states")}
    assert failures(bounded(tmp_path / "a", quick(*PRIVATE), own))[:2] == [[], []]
    other = bounded(tmp_path / "b", quick(*PRIVATE, "federation.rounds=1"), own, client=1)
    assert failures(other) == [["this participant's bound of ε = 3.5 would be passed"]]


@pytest.mark.parametrize(
    ("overrides", "own", "reason"),
    [
        ([], {"max_epsilon": "3"}, "sends nothing without privacy"),
        ([], {"protects": "client"}, "sends nothing without privacy"),
        (PRIVATE, {"protects": "client"}, "takes part only with privacy.protects = 'client'"),
        (PRIVATE, {"max-epsilon": "9", "protects": "client"}, "privacy.protects = 'client'"),
    ],
)
def test_a_participant_rejects_runs_with_less_privacy_than_its_bound(
    overrides: list[str], own: dict[str, str], reason: str, tmp_path: Path
) -> None:
    found = failures(bounded(tmp_path, quick(*overrides, "federation.rounds=1"), own))
    assert len(found[0]) == 1
    assert reason in found[0][0]


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"max-epsilom": 1.0}, "no setting 'max-epsilom'; did you mean max-epsilon?"),
        ({"epsilon": 1.0}, "no setting 'epsilon'; did you mean max-epsilon?"),
        ({"MAX_EPS": 1.0}, "no setting 'max-eps'; did you mean max-epochs?"),
        ({"protect": "client"}, "no setting 'protect'; did you mean protects?"),
        ({"states": "elsewhere"}, "no setting 'states'; did you mean state?"),
        ({"protects": "clients"}, "protects = 'clients': Input should be"),
        *(({"max-epsilon": bad}, "max-epsilon = ") for bad in ("nan", "inf", 0, -1.0, "", True)),
        *(({"delta": bad}, "delta = ") for bad in (0, 1, "nan", -1e-5, "small", 1e-16)),
    ],
)
def test_misspelled_or_invalid_bounds_raise(own: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        read_bound({"client": 0, **own})


def test_other_settings_are_ignored_and_key_spelling_is_lenient() -> None:
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


def test_a_participant_with_a_misspelled_bound_sends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = bounded(tmp_path, quick(*PRIVATE, "federation.rounds=1"), {"max-epsilom": "1"})
    assert failures(federation) == [["ConfigError; see the client's own log"]]
    assert "did you mean max-epsilon?" in caplog.text


@pytest.mark.parametrize(
    ("line", "problem"),
    [("max-epsilon = 4", "without spaces around the ="), ("protect=1", "did you mean protects?")],
)
def test_a_node_with_invalid_settings_is_not_started(
    line: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "node.sh").write_text("touch started")
    (tmp_path / "node.conf").write_text(f'# ours\nclient=0 data="a b"\n{line}\n')
    with pytest.raises(ConfigError, match=re.escape(problem)):
        node.join(tmp_path, print)
    assert not (tmp_path / "started").exists()


def test_a_method_without_uploads_spends_no_privacy(tmp_path: Path) -> None:
    prepared = quick("method.name=standalone", "federation.rounds=1")
    assert failures(bounded(tmp_path, prepared, {"max-epsilon": "1"})) == [[]]
    assert not (tmp_path / "states" / "privacy.json").exists()


ALONE = ["method.name=standalone", "federation.rounds=1", "federation.clients=1"]
ALONE += ["data.classes_per_client=10"]


@pytest.mark.parametrize(
    ("overrides", "own", "sent"),
    [
        ([], {}, True),
        (["privacy.protects=client"], {}, False),
        ([], {"protects": "client"}, False),
        ([], {"max-epsilon": "0.001"}, False),
    ],
)
def test_the_training_loss_is_sent_only_without_any_privacy_setting(
    overrides: list[str], own: dict[str, str], sent: bool, tmp_path: Path
) -> None:
    """Holds for every method: also a method without uploads has a training loss."""
    (record,) = bounded(tmp_path, quick(*ALONE, *overrides), own).run().records()
    assert (record.train_loss is not None) == sent
    assert record.accuracy is not None


def test_the_training_loss_is_not_recorded_in_a_simulation_with_privacy(tmp_path: Path) -> None:
    run = loop.run(quick(*ALONE, "privacy.protects=sample"), tmp_path / "run")
    assert run.records()[0].train_loss is None


def make_client(task: Task, _: NodeConfig) -> ClientSpec:
    x = torch.arange(120.0).view(30, 4) / 60
    return ClientSpec(nn.Linear(4, task.rep_dim), (x, torch.arange(30) % 2))


def test_real_participants_draw_unpredictable_noise(tmp_path: Path) -> None:
    settings: dict[str, dict[str, Any]] = {
        "federation": {"clients": 1, "rounds": 1},
        "data": {"name": "private", "classes": ["no", "yes"]},
        "model": {"rep_dim": 3},
        "privacy": {"protects": "client"},
    }
    prepared = experiment.prepare(config.parse(settings))

    def class_means(folder: str) -> bytes:
        federation = LocalFederation(tmp_path / folder, prepared, [client_app(make_client)])
        run = federation.run()
        return (run.path / "means" / "000001.safetensors").read_bytes()

    assert class_means("a") != class_means("b")


@pytest.mark.parametrize(("rounds", "breaks"), [(3, [5]), (4, [5, 1])])
def test_a_run_with_lost_rounds_stops_before_it_exceeds_epsilon(
    rounds: int, breaks: list[int], tmp_path: Path
) -> None:
    """Requests before the server was killed count as well as those after its restart."""
    settings: dict[str, dict[str, Any]] = {
        "federation": {"clients": 2, "rounds": rounds},
        "data": {"name": "private", "classes": ["no", "yes"]},
        "model": {"rep_dim": 3},
        "privacy": {"protects": "client", "epsilon": 4.0},
        "run": {"checkpoint_every": 2},
    }
    prepared = experiment.prepare(config.parse(settings))
    federation = LocalFederation(tmp_path, prepared, [client_app(make_client)])
    for k in range(2):  # on two machines
        own = {"max-epsilon": 4.0, "state": str(tmp_path / f"states-{k}")}
        federation.grid.nodes[FIRST_NODE + k].config.update(own)  # type: ignore[attr-defined]
    for after in breaks:  # replies before the crash: in round 3; again in the repeated round 3
        federation.grid.break_after, federation.grid.delivered = after, 0
        with pytest.raises(KeyboardInterrupt):
            federation.run()
        federation.grid.waiting.clear()
    federation.grid.break_after, federation.grid.delivered = 2**62, 0
    for _ in range(2):
        with pytest.raises(RunError, match=r"one more would bring its ε to .* above .* = 4\."):
            federation.run()
    assert federation.grid.delivered == 0, "no further request was sent"
    run = RunFolder(tmp_path / "run")
    assert [record.round for record in run.records()] == [1, 2]
    assert all((record.epsilon or 0) <= 4 for record in run.records())
    ledgers = [(tmp_path / f"states-{k}" / "privacy.json").read_text() for k in range(2)]
    assert [json.loads(ledger)["releases"] for ledger in ledgers] == [3, 2], "one request was lost"


def test_a_run_without_lost_rounds_spends_exactly_epsilon(tmp_path: Path) -> None:
    prepared = quick("privacy.protects=client", "privacy.epsilon=4", "federation.rounds=3")
    run = loop.run(prepared, tmp_path / "run")
    assert run.records()[-1].epsilon == pytest.approx(4)


@pytest.mark.parametrize("content", ["", "[]", '{"0": -1}', '{"0": "x"}', '{"a": 1}'])
def test_resume_rejects_a_damaged_request_count(content: str, tmp_path: Path) -> None:
    run = loop.run(quick(*PRIVATE, "federation.rounds=1"), tmp_path / "run")
    (run.path / "asked.json").write_text(content)
    with pytest.raises(RunError, match=r"asked\.json"):
        loop.resume(run.path)
