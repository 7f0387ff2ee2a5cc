"""Comparisons and searches: fair, resumable, and counted right."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgh import cli, experiment, statistics
from fedgh.core.runs import RunFolder
from fedgh.core.types import Job
from fedgh.errors import ConfigError, RunError
from fedgh.methods import METHODS
from fedgh.sweep import Outcome, Trial, plan_comparison, plan_search, run_trials
from tests.tiny import QUICK, numbers, quick


def plan(methods: str, seeds: tuple[int, ...] = (0, 1), *overrides: str) -> list[Trial]:
    return plan_comparison("demo", methods, seeds, [*QUICK, *overrides])


def test_all_means_all_and_settings_follow_a_colon() -> None:
    trials = plan_comparison("demo", "all", [0, 1])
    assert [t.label for t in trials] == [*METHODS, *METHODS]
    trials = plan("fedgh,fedgh:server_lr=0:server_batch=client,standalone:reset_header=true", (3,))
    assert [trial.config.to_table()["method"] for trial in trials] == [
        {"name": "fedgh", "server_lr": 0.01, "server_batch": "pair", "server_epochs": 1},
        {"name": "fedgh", "server_lr": 0.0, "server_batch": "client", "server_epochs": 1},
        {"name": "standalone", "reset_header": True},
    ]
    assert {trial.config.federation.seed for trial in trials} == {3}


def test_methods_start_from_the_same_clients_data_weights_and_batches() -> None:
    """The first training loss of a client is the same bits under all methods that start alike."""
    from torch.nn.functional import cross_entropy

    first: dict[str, list[float]] = {}
    for name in METHODS:
        zoo = ["model.zoo=tests.tiny:mlp"] if name == "fedavg" else []
        prepared = quick(f"method.name={name}", *zoo)
        blueprint = prepared.blueprint()
        client = blueprint.make(0)
        client.round = 1
        from fedgh.data.batches import shuffled

        x, y = next(iter(shuffled(client.data.train, 16, client.stream("batches"), ["flip"])))
        first[name] = [float(x.sum()), float(y.sum()), cross_entropy(client.model(x), y).item()]
    assert len({tuple(values) for values in first.values()}) == 1


def test_a_sweep_runs_what_is_missing_resumes_what_was_stopped_and_skips_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgh.engines.host import ClientHost

    jobs: list[Job] = []
    original = ClientHost.run

    def counting(host: ClientHost, job: Job) -> Any:
        jobs.append(job)
        return original(host, job)

    monkeypatch.setattr(ClientHost, "run", counting)
    trials = plan("fedgh,standalone", (0,))
    whole = run_trials(trials, tmp_path / "whole")
    assert len(jobs) == 2 * 3 * 5

    from tests.engines.test_engines import interrupted

    interrupted(experiment.prepare(trials[0].config), tmp_path / "part" / "fedgh-seed0", after=2)
    jobs.clear()
    part = run_trials(trials, tmp_path / "part")
    assert len(jobs) == (1 + 3) * 5  # one round left of the first run, three of the second
    for (_, a), (_, b) in zip(whole.runs, part.runs, strict=True):
        assert numbers(a) == numbers(b)
    jobs.clear()
    run_trials(trials, tmp_path / "part")
    assert jobs == []


def test_other_settings_are_not_mixed_into_an_old_sweep(tmp_path: Path) -> None:
    run_trials(plan("standalone", (0,)), tmp_path)
    with pytest.raises(RunError, match=r"local.lr is 0.01 there, 0.5 asked for"):
        run_trials(plan("standalone", (0,), "local.lr=0.5"), tmp_path)
    # How it is computed is another matter.
    run_trials(plan("standalone", (0,), "run.workers=1"), tmp_path)


def test_what_is_impossible_is_noted_or_refused(tmp_path: Path) -> None:
    trials = plan("fedavg,standalone", (0,))
    outcome = run_trials(trials, tmp_path / "noted", skip_impossible=True)
    assert [trial.label for trial, _ in outcome.runs] == ["standalone"]
    assert "clients 1, 3 differ" in outcome.impossible["fedavg"]
    with pytest.raises(ConfigError, match="differ"):
        run_trials(trials, tmp_path / "refused")


def test_bad_plans() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedproto'"):
        plan("fedgh,fedprot")
    with pytest.raises(ConfigError, match="named twice"):
        plan("fedgh,fedgh")
    with pytest.raises(ConfigError, match="nothing to run"):
        plan("fedgh", ())
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        plan_search("demo", ["local.lr"], [0])
    with pytest.raises(ConfigError, match=r"local\.ephocs"):
        plan_search("demo", ["local.ephocs=1,2"], [0])


def fake_run(path: Path, rounds: list[list[float]], reached: int | None = None) -> RunFolder:
    """A finished run with these accuracies per round and client."""
    run = RunFolder.create(path, "", {}, [], {})
    for number, accuracies in enumerate(rounds, 1):
        run.append(
            {
                "round": number,
                "accuracy": float(np.mean(accuracies)),
                "accuracy_per_client": accuracies,
                "evaluation_accuracy_per_client": accuracies,
            }
        )
    run.write_summary(
        {
            "rounds_to_target": reached,
            "bytes_to_target": reached and reached * 100,
            "bytes_per_client_round": 50.0,
            "paper_bytes_per_client_round": None,
            "seconds": 2.0,
        }
    )
    return run


def test_a_table_worked_by_hand(tmp_path: Path) -> None:
    config = plan("fedgh", (0,))[0].config
    runs = [
        (Trial("fedgh", 0, config), fake_run(tmp_path / "a", [[1.0, 1.0], [0.8, 0.6]], 1)),
        (Trial("fedgh", 1, config), fake_run(tmp_path / "b", [[1.0, 1.0], [0.9, 0.9]], 2)),
        (Trial("fd", 0, config), fake_run(tmp_path / "c", [[0.0, 0.0], [0.7, 0.5]])),
        (Trial("fd", 1, config), fake_run(tmp_path / "d", [[0.0, 0.0], [0.8, 0.8]], 2)),
    ]
    fedgh, fd = statistics.rows(Outcome(runs, {}))
    assert fedgh.accuracy == pytest.approx((0.7 + 0.9) / 2)  # the last round, not the best
    assert fedgh.accuracy_std == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert (fedgh.difference, fedgh.p_value) == (None, None)
    assert (fedgh.reached, fedgh.rounds_to_target, fedgh.bytes_to_target) == (2, 1.5, 150)
    assert fd.difference == pytest.approx(-0.1)  # all four pairs differ by a tenth
    # Of the 16 ways to flip four equal differences, two are as extreme: all one way, or the other.
    assert fd.p_value == pytest.approx(2 / 16, abs=0.01)
    assert (fd.reached, fd.rounds_to_target) == (1, 2)
    assert statistics.rows(Outcome(runs, {}), last=2)[0].accuracy == pytest.approx(0.9)
    one = statistics.rows(Outcome(runs[:1], {}))[0]
    assert one.accuracy_std is None


def test_the_test_finds_what_is_there_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    assert statistics.paired_test(rng.normal(0.02, 0.02, 30)) < 0.01
    assert statistics.paired_test(np.zeros(30)) == 1.0
    noise = [statistics.paired_test(rng.normal(0, 1, 20)) for _ in range(60)]
    assert 0.3 < np.mean(noise) < 0.7  # uniform under the null hypothesis
    assert np.mean(np.array(noise) < 0.05) < 0.2


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedgh", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


SET = [word for override in QUICK for word in ("--set", override)]


def test_compare_as_a_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["compare", *SET, "--seeds", "0,1", "--rounds", "2", "--out", str(tmp_path)]
    small = "shared=tests.tiny:mlp"
    methods = f"standalone,lg_fedavg,fd,fedproto,fedgh,fml:{small},fedkd:{small}"
    assert call(monkeypatch, *words, "--methods", methods + ",fedavg") == 2  # named, so refused
    assert "fedavg averages whole models" in capsys.readouterr().err
    assert call(monkeypatch, *words, "--methods", methods) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert [row["label"] for row in rows] == [row["label"] for row in document["rows"]]
    assert len(rows) == 7
    for row in rows:
        assert f"{100 * float(row['accuracy']):.2f}" in out
        summaries = [
            json.loads((tmp_path / f"{row['label']}-seed{seed}" / "summary.json").read_text())
            for seed in (0, 1)
        ]
        finals = [summary["final_accuracy"] for summary in summaries]
        assert float(row["accuracy"]) == pytest.approx(np.mean(finals))
        assert float(row["accuracy_std"]) == pytest.approx(np.std(finals, ddof=1))


def test_tune_chooses_on_the_evaluation_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", *SET, "--grid", "local.lr=0.0001,0.05", "--grid", "local.epochs=1,2"]
    words += ["--set", "method.name=lg_fedavg", "--out", str(tmp_path)]
    assert call(monkeypatch, *words) == 0
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / "search.json").read_text())["rows"]
    assert len(rows) == 4
    judged = [row["evaluation_accuracy"] for row in rows]
    assert judged == sorted(judged, reverse=True)
    assert f"best: {rows[0]['label']};" in out
    assert "lr = 0.05" in (tmp_path / "best.toml").read_text()
    # Make the worst point look perfect on test data: the choice must not change.
    for row in rows[1:]:
        folder = tmp_path / f"{row['label']}-seed0"
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        for line in lines:
            line["accuracy_per_client"] = [1.0] * 5
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call(monkeypatch, *words) == 0
    assert f"best: {rows[0]['label']};" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tune"], "nothing to search"),
        (["tune", "--grid", "local.epochs"], "expected section.key=value"),
        (["compare", "--seeds", "one"], "expected whole numbers"),
        (["compare", "--methods", "fedghh"], "did you mean 'fedgh'"),
    ],
)
def test_mistakes(
    words: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, *words) == 2
    assert says in capsys.readouterr().err
