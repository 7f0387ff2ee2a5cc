"""Comparisons and grid searches: equal conditions, resuming, and correct statistics."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgh.core.types import Client, Examples, Job, Recipient
from fedgh.errors import ConfigError, RunError
from fedgh.methods import METHODS
from fedgh.report.terminal import comparison
from fedgh.runs.folder import RunFolder
from fedgh.studies import statistics, sweep, sweep_folder
from fedgh.studies.significance import paired_test
from fedgh.studies.sweep import Outcome, Trial, plan_comparison, run_trials
from fedgh.studies.tuning import plan_search
from fedgh.training import experiment
from fedgh.training.callbacks import Callback
from tests.support.commands import SET, inside
from tests.support.families import PUBLIC
from tests.support.records import a_round, a_summary
from tests.support.tiny import QUICK, a_run, numbers, quick, tiny_shared


def plan(methods: str, seeds: tuple[int, ...] = (0, 1), *overrides: str) -> list[Trial]:
    return plan_comparison("demo", methods, seeds, [*QUICK, *overrides])


def test_methods_are_planned_by_name_with_optional_settings() -> None:
    trials = plan_comparison("demo", "all", [0, 1])
    assert [t.label for t in trials] == [*METHODS, *METHODS]
    trials = plan("fedgh,fedgh:server_lr=0:server_batch=client,standalone:reset_header=true", (3,))
    assert [trial.config.to_table()["method"] for trial in trials] == [
        {"name": "fedgh", "server_lr": 0.01, "server_batch": "pair", "server_epochs": 1},
        {"name": "fedgh", "server_lr": 0.0, "server_batch": "client", "server_epochs": 1},
        {"name": "standalone", "reset_header": True, "networks": 1},
    ]
    assert {trial.config.federation.seed for trial in trials} == {3}


def test_methods_train_on_the_same_batches_from_the_same_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Record the batches of the stream that all methods share, in two rounds of a client."""
    from fedgh.core import local
    from fedgh.core.batches import shuffled

    seen: dict[str, list[tuple[float, float]]] = {}
    weights: dict[str, float] = {}
    settings = {"fedrep": ["method.extractor_epochs=2"]}  # as in [local] of the demo
    for name in sorted(METHODS.keys() - {"fedclassavg"}):  # it draws two views of each batch
        words = ["model.extractors=tests.support.tiny:mlp", "local.augment=flip,crop,erase"]
        overrides = [*words, *PUBLIC, *tiny_shared(name, "mlp"), *settings.get(name, [])]
        prepared = quick(f"method.name={name}", "local.batch_size=16", *overrides)
        client, server = prepared.blueprint().make(0), prepared.initial_server()
        weights[name] = client.model.extractor[1].weight.sum().item()  # type: ignore[index]
        batches: list[tuple[float, float]] = []

        def recorded(
            on: Examples,
            size: int,
            rng: torch.Generator,
            *words: Any,
            batches: list[tuple[float, float]] = batches,
            client: Client = client,
        ) -> Any:
            # Additional phases, such as the header of FedRep, draw from streams of their own.
            common = rng.initial_seed() == client.stream("batches").initial_seed()
            train = client.data.train
            for x, y in shuffled(on, size, rng, *words):
                labels = y if on.y is train.y else train.labels[y]  # samples may be numbered
                if common:
                    batches.append((float(x.sum()), float(labels.sum())))
                yield x, y

        monkeypatch.setattr(local, "shuffled", recorded)
        to = Recipient(0, None, 0, *prepared.server_resources().architecture(0))
        for client.round in (1, 2):
            prepared.config.method.client_update(
                client, prepared.config.method.broadcast(server, to)
            )
        seen[name] = batches
    assert len(seen["fedgh"]) > 50
    assert all(batches == seen["fedgh"] for batches in seen.values())
    assert len(set(weights.values())) == 1


def test_a_sweep_starts_missing_runs_resumes_stopped_ones_and_skips_finished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgh.engines.host import ClientHost

    jobs: list[Job] = []
    original = ClientHost.run

    def counted(host: ClientHost, job: Job) -> Any:
        jobs.append(job)
        return original(host, job)

    monkeypatch.setattr(ClientHost, "run", counted)
    trials = plan("fedgh,standalone", (0,))
    uninterrupted = run_trials(trials, tmp_path / "uninterrupted")
    assert len(jobs) == 2 * 3 * 5

    from tests.support.runs import interrupted

    interrupted(experiment.prepare(trials[0].config), tmp_path / "resumed" / "fedgh-seed0", after=2)
    jobs.clear()
    resumed = run_trials(trials, tmp_path / "resumed")
    assert len(jobs) == (1 + 3) * 5  # one round left of the first run, three of the second
    for (_, a), (_, b) in zip(uninterrupted.runs, resumed.runs, strict=True):
        assert numbers(a) == numbers(b)
    jobs.clear()
    run_trials(trials, tmp_path / "resumed")
    assert jobs == []


def test_a_sweep_refuses_finished_runs_with_other_settings(tmp_path: Path) -> None:
    run_trials(plan("standalone", (0,)), tmp_path)
    with pytest.raises(RunError, match=r"local\.lr is 0\.01 there, 0\.5 requested"):
        run_trials(plan("standalone", (0,), "local.lr=0.5"), tmp_path)
    # Settings of the engine and additional metrics do not change results.
    run_trials(plan("standalone", (0,), "run.workers=1"), tmp_path)
    run_trials(plan("standalone", (0,), "run.global_accuracy=every"), tmp_path)


def test_a_run_without_global_accuracy_is_shown_with_a_dash(tmp_path: Path) -> None:
    run_trials(plan("standalone", (0,), "run.global_accuracy=never"), tmp_path)
    outcome = run_trials(plan("standalone", (0,)), tmp_path)
    (row,) = statistics.rows(outcome)
    assert row.accuracy is not None
    assert (row.global_accuracy, row.global_accuracy_std) == (None, None)
    table = comparison([row], {}, None)
    assert {column.header: list(column.cells) for column in table.columns}["global %"] == ["-"]


def test_a_sweep_refuses_a_run_that_another_process_started_with_other_settings(
    tmp_path: Path,
) -> None:
    other = quick("method.name=standalone", "run.eval_every=3")

    @contextmanager
    def start_other_run(line: str) -> Iterator[Callback]:
        a_run(
            tmp_path / "standalone-seed0",
            config=other.config.to_toml(),
            identity=other.identity(),
            clients=other.clients(),
        )
        yield Callback()

    outcome = run_trials(plan("standalone", (0,)), tmp_path, start_other_run)
    assert "run.eval_every is 3 there, 1 requested" in outcome.missing["standalone, seed 0"]


def test_a_comparison_without_any_result_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", *SET, "-q", "--methods", "standalone", "--seeds", "0"]
    folder = tmp_path / "standalone-seed0"
    folder.mkdir()
    with RunFolder(folder).locked():
        assert inside(monkeypatch, *arguments, "--out", str(tmp_path)) == 1
    assert capsys.readouterr().err == (
        f"error: no method has a result to compare; standalone, seed 0: {folder} is in use by "
        "another process\n"
    )


def test_a_sweep_refuses_runs_on_other_data(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    rng = np.random.default_rng(0)
    arguments = ["data.name=npz", f"data.path={path}", "data.partition=iid"]
    for fill in (0.0, 1.0):
        np.savez(path, x=rng.normal(fill, 1, (60, 4)), y=np.arange(60) % 3)
        if fill:
            with pytest.raises(RunError, match="holds another run: its data"):
                run_trials(plan("standalone,fedgh", (0,), *arguments), tmp_path / "out")
        else:
            run_trials(plan("standalone", (0,), *arguments), tmp_path / "out")


def test_all_methods_are_those_that_fit_and_the_others_have_a_reason(tmp_path: Path) -> None:
    def stop(line: str) -> Any:
        raise KeyboardInterrupt(line)

    missing: dict[str, str] = {}
    trials = plan("all", (0,), "model.rep_dim=128")
    with pytest.raises(KeyboardInterrupt, match=r"\[1/"):  # everything is prepared by then
        run_trials(trials, tmp_path, stop, skip_impossible=True, missing=missing)
    alike = {name: kind().same_part for name, kind in METHODS.items()}
    public = {name for name, kind in METHODS.items() if kind().public_for != "none"}
    parts = {"heterofl", "fedrolex", "fjord"}  # the clients have networks of these tests
    same = {name for name, part in alike.items() if part != "none"}
    assert set(missing) == same | public | parts
    for name, reason in missing.items():
        why = "public data" if name in public else f"the same {alike[name]} at all clients"
        expected = "a part of|none of method.widths" if name in parts else f"{name} needs {why}"
        assert re.search(expected, reason)


def test_an_impossible_method_is_reported_or_refused_before_any_run(tmp_path: Path) -> None:
    trials = plan("standalone,fedavg", (0,))
    with pytest.raises(ConfigError, match="differ"):
        run_trials(trials, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    outcome = run_trials(trials, tmp_path / "noted", skip_impossible=True)
    assert [trial.label for trial, _ in outcome.runs] == ["standalone"]
    assert "clients 1, 3 differ" in outcome.missing["fedavg"]
    with pytest.raises(
        ConfigError, match="cannot hold all 10 classes"
    ):  # a mistake of the configuration
        run_trials(plan("all", (0,), "federation.clients=2"), tmp_path, skip_impossible=True)
    outcome = run_trials(plan("fedavg", (0,)), tmp_path / "none", skip_impossible=True)
    assert (outcome.runs, list(outcome.missing)) == ([], ["fedavg"])


def test_the_remaining_time_is_estimated_from_the_most_similar_runs(tmp_path: Path) -> None:
    """FedGH took 8 s and FD 4 s; half the rounds of FedGH take 4 s, an unknown method takes 6 s."""

    def done(label: str, seconds: float, *overrides: str, setting: str = "here") -> Any:
        (trial,) = plan(label, (0,), "federation.rounds=4", *overrides)
        folder = a_run(tmp_path / f"{setting}-{label}")
        folder.write_summary(a_summary(seconds=seconds))
        return replace(trial, setting=setting), folder

    (known, _), (other, _), *_ = runs = [done("fedgh", 8.0), done("fd", 4.0)]
    shorter = replace(known, config=plan("fedgh", (1,), "federation.rounds=2")[0].config)
    elsewhere = done("fedgh", 16.0, setting="there")
    assert sweep.forecast([*runs, elsewhere], [shorter]) == "; about 0:00:04 remaining"
    assert (
        sweep.forecast([*runs, elsewhere], [replace(other, setting="there")])
        == "; about 0:00:04 remaining"
    )
    assert sweep.forecast(runs, [replace(other, label="fedproto")]) == "; about 0:00:06 remaining"
    three = [known, other, known]  # 20 s
    assert sweep.forecast(runs, three, jobs=2) == "; about 0:00:10 remaining"
    assert sweep.forecast(runs, three[:1], jobs=2) == "; about 0:00:08 remaining"
    assert sweep.forecast([], [known]) == ""


def test_a_sweep_continues_after_a_run_that_diverges(tmp_path: Path) -> None:
    trials = plan_search("demo", ["local.lr=0.01,1e30,0.02"], [0], QUICK)
    for _ in range(2):  # also when the sweep is repeated
        outcome = run_trials(trials, tmp_path)
        assert [t.label for t, _ in outcome.runs] == ["local.lr=0.01", "local.lr=0.02"]
        assert "lower local.lr" in outcome.missing["local.lr=1e+30, seed 0"]


def test_a_method_that_fails_with_one_seed_has_no_result(tmp_path: Path) -> None:
    trials = [
        replace(trial, label="fedgh")
        for seed, lr in enumerate(("1e30", "0.01"))
        for trial in plan("fedgh", (seed,), f"local.lr={lr}")
    ]
    outcome = run_trials(trials, tmp_path)
    assert list(outcome.missing) == ["fedgh, seed 0"]
    assert not outcome.runs, "a mean over the other seeds would be biased"


def test_values_of_a_grid_may_be_lists() -> None:
    trials = plan_search("demo", ['local.augment=["flip", "crop"],[]', "data.partition=iid"], [0])
    assert [trial.config.local.augment for trial in trials] == [["flip", "crop"], []]
    assert {trial.config.data.partition for trial in trials} == {"iid"}


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedproto'"):
        plan("fedgh,fedprot")
    with pytest.raises(ConfigError, match="'fedgh' and 'fedgh', seed 0, are the same"):
        plan("fedgh,fedgh")
    with pytest.raises(ConfigError, match="are the same"):
        plan("fedgh,fedgh:server_lr=0.01")
    with pytest.raises(ConfigError, match="are the same"):
        plan_search("demo", ["local.lr=0.1,0.10"], [0])
    with pytest.raises(ConfigError, match=r"expected method:setting=value"):
        plan("fedgh:server_lr")
    with pytest.raises(ConfigError, match="known: reset_header"):
        plan("standalone:qqq=1")
    with pytest.raises(ConfigError, match="nothing to run"):
        plan("fedgh", ())
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        plan_search("demo", ["local.lr"], [0])
    with pytest.raises(ConfigError, match=r"local\.ephocs"):
        plan_search("demo", ["local.ephocs=1,2"], [0])
    with pytest.raises(ConfigError, match="this setting has a second --grid"):
        plan_search("demo", ["local.lr=1,2", "local.lr=3"], [0])
    with pytest.raises(ConfigError, match="given with --seeds"):
        plan_search("demo", ["federation.seed=1,2"], [0])
    with pytest.raises(ConfigError, match="given with --seeds"):
        plan("fedgh", (0,), "federation.seed=7")


def fake_run(path: Path, rounds: list[list[float]], reached: int | None = None) -> RunFolder:
    """Return a finished run with these accuracies per round and client."""
    run = a_run(path)
    for number, accuracies in enumerate(rounds, 1):
        mean = float(np.mean([a for a in accuracies if a is not None]))
        scores = {"accuracy_per_client": accuracies, "validation_accuracy_per_client": accuracies}
        run.append(a_round(number, mean, **scores))
    run.write_summary(
        a_summary(
            rounds_to_target=reached,
            bytes_to_target=reached and reached * 100,
            bytes_per_client_round=50.0,
            seconds=2.0,
        )
    )
    return run


def test_the_rows_of_a_comparison_worked_by_hand(tmp_path: Path) -> None:
    config = plan("fedgh", (0,))[0].config
    runs = [
        (Trial("fedgh", 0, config), fake_run(tmp_path / "a", [[1.0, 1.0], [0.8, 0.6]], 1)),
        (Trial("fedgh", 1, config), fake_run(tmp_path / "b", [[1.0, 1.0], [0.9, 0.9]], 2)),
        (Trial("fd", 0, config), fake_run(tmp_path / "c", [[0.0, 0.0], [0.7, 0.5]])),
        (Trial("fd", 1, config), fake_run(tmp_path / "d", [[0.0, 0.0], [0.8, 0.8]], 2)),
    ]
    fedgh, fd = statistics.rows(Outcome(runs, {}), reference="fedgh")
    assert fedgh.accuracy == pytest.approx((0.7 + 0.9) / 2)  # the last round, not the best
    assert fedgh.accuracy_std == pytest.approx(np.std([0.7, 0.9], ddof=1))
    assert (fedgh.difference, fedgh.p_value) == (None, None)
    assert (fedgh.reached, fedgh.rounds_to_target, fedgh.bytes_to_target) == (2, 1.5, 150)
    assert fedgh.rounds_to_target_std == pytest.approx(np.std([1, 2], ddof=1))
    assert fedgh.bytes_to_target_std == pytest.approx(100 * np.std([1, 2], ddof=1))
    assert (fedgh.seconds, fedgh.seconds_std) == (2.0, 0.0)
    assert fd.difference == pytest.approx(-0.1)  # all four pairs differ by a tenth
    # Of the 16 sign patterns of four equal differences, two are as extreme: all plus, all minus.
    assert fd.p_value == pytest.approx(2 / 16, abs=0.01)
    assert (fd.reached, fd.rounds_to_target) == (1, 2)
    assert statistics.rows(Outcome(runs, {}), last=2)[0].accuracy == pytest.approx(0.9)
    one = statistics.rows(Outcome(runs[:1], {}))[0]
    assert one.accuracy_std is None
    assert statistics.rows(Outcome(runs, {}))[1].difference is None  # nothing to compare with


def test_clients_without_scores_are_ignored(tmp_path: Path) -> None:
    config = plan("fedgh", (0,))[0].config
    hole: Any = [[0.2, None], [0.4, None]]
    runs = [
        (Trial("fedgh", 0, config), fake_run(tmp_path / "a", [[1.0, 1.0], [0.8, 0.6]])),
        (Trial("fd", 0, config), fake_run(tmp_path / "b", hole)),
    ]
    outcome = Outcome(runs, {})
    table = statistics.rows(outcome, reference="fedgh")
    assert table[1].accuracy == table[1].validation_accuracy == pytest.approx(0.4)
    assert table[1].difference == pytest.approx(-0.4)
    statistics.write(table, outcome, tmp_path / "table", {})
    assert json.loads((tmp_path / "table.json").read_text(), parse_constant=pytest.fail)


def test_a_label_is_not_a_formula_in_a_spreadsheet(tmp_path: Path) -> None:
    trial = Trial("=1+1", 0, plan("fedgh", (0,))[0].config)
    outcome = Outcome([(trial, fake_run(tmp_path / "a", [[1.0, 1.0]]))], {})
    statistics.write(statistics.rows(outcome), outcome, tmp_path / "table", {})
    (row,) = csv.DictReader((tmp_path / "table.csv").open())
    assert (row["label"], row["accuracy"], row["p_value"]) == ("'=1+1", "1.0", "")


def test_the_paired_test_finds_a_difference_and_is_uniform_without_one() -> None:
    rng = np.random.default_rng(0)
    assert paired_test(rng.normal(0.02, 0.02, 30)) < 0.01
    assert paired_test(np.zeros(30)) == 1.0
    assert paired_test(np.array([0.5])) == 1.0
    noise = [paired_test(rng.normal(0, 1, 20)) for _ in range(60)]
    assert 0.3 < np.mean(noise) < 0.7  # uniform under the null hypothesis
    assert np.mean(np.array(noise) < 0.05) < 0.2


def test_compare_as_a_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["compare", *SET, "--seeds", "0,1", "--rounds", "2", "--out", str(tmp_path)]
    small = "shared=tests.support.tiny:mlp"
    methods = f"standalone,lg_fedavg,fd,fedproto,fedgh,fml:{small},fedkd:{small}"
    # A method that is named and impossible is an error.
    assert inside(monkeypatch, *arguments, "--methods", methods + ",fedavg") == 2
    assert "fedavg needs the same network at all clients" in capsys.readouterr().err
    assert inside(monkeypatch, *arguments, "--methods", methods) == 0
    out = capsys.readouterr().out
    assert "…" not in out  # no number is cut off
    assert f"report     {tmp_path / 'report.html'}" in out
    assert (tmp_path / "report.html").exists()
    assert "With 2 seeds the smallest p that is possible is 0.5, 1 corrected" in out
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert [row["label"] for row in rows] == [row["label"] for row in document["rows"]]
    assert len(rows) == 7
    for row in rows:
        assert f"{100 * float(row['accuracy']):.2f}" in out
        assert f"{100 * float(row['global_accuracy']):.2f}" in out
        summaries = [
            json.loads((tmp_path / folder / "summary.json").read_text())
            for folder in (f"{row['label']}-seed{seed}".replace(":", ",") for seed in (0, 1))
        ]
        finals = [summary["final_accuracy"] for summary in summaries]
        assert float(row["accuracy"]) == pytest.approx(np.mean(finals))
        assert float(row["accuracy_std"]) == pytest.approx(np.std(finals, ddof=1))
        finals = [summary["final_global_accuracy"] for summary in summaries]
        assert float(row["global_accuracy"]) == pytest.approx(np.mean(finals))
        assert float(row["global_accuracy_std"]) == pytest.approx(np.std(finals, ddof=1))
    (alone, *_) = csv.DictReader((tmp_path / "networks.csv").open())
    runs = [RunFolder(tmp_path / f"standalone-seed{seed}") for seed in (0, 1)]
    for name in ("tests.support.tiny:mlp", "tests.support.tiny:noisy"):
        scores = [
            score
            for run in runs
            for client, score in zip(run.clients(), statistics.client_accuracies(run), strict=True)
            if client.extractor == name
        ]
        assert float(alone[name]) == pytest.approx(100 * np.mean(scores))


def test_compare_collects_runs_that_other_commands_have_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"

    def compare(*words: str) -> int:
        methods = ["--methods", "standalone,fedgh,fedgh:server_lr=1e30"]
        return inside(monkeypatch, "compare", *SET, *methods, "--out", str(out), *words)

    assert compare("--seeds", "0,1", "--no-run") == 1
    assert f"error: {out} does not exist; leave out --no-run" in capsys.readouterr().err
    assert compare("-q", "--seeds", "0") == 0
    assert compare("--seeds", "0,1", "--no-run") == 1  # a mean over one seed only would be biased
    out_and_err = capsys.readouterr()
    assert "standalone, seed 1; fedgh, seed 1" in out_and_err.out
    assert out_and_err.err.endswith("; name only seeds whose runs have finished\n")
    assert compare("-q", "--seeds", "1") == 0
    assert [row["label"] for row in csv.DictReader((out / "comparison.csv").open())] == [
        "standalone",
        "fedgh",
    ]
    monkeypatch.setattr(experiment, "prepare", None)  # neither data nor networks are needed
    assert compare("--seeds", "0,1", "--no-run") == 0
    collected = capsys.readouterr().out
    assert "[1/" not in collected
    assert "fedgh:server_lr=1e30, seed 1: " in collected
    assert "not run" not in collected  # the reason is that of the run
    document = json.loads((out / "comparison.json").read_text())
    assert [(row["label"], row["seeds"]) for row in document["rows"]] == [
        ("standalone", 2),
        ("fedgh", 2),
    ]


def test_seeds_that_are_missing_for_the_same_reason_are_one_line() -> None:
    missing = {"a, seed 0": "x", "a, seed 2": "x", "a, seed 1": "y", "b": "z", "s: c, seed 7": "x"}
    assert sweep.join_seeds(missing) == {
        "a, seeds 0, 2": "x",
        "a, seed 1": "y",
        "b": "z",
        "s: c, seed 7": "x",
    }


def test_a_stopped_comparison_has_the_table_of_the_runs_that_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(
        trials: object, out: object, watch: object, skip: object, missing: dict[str, str], jobs: int
    ) -> None:
        missing["fd, seed 0"] = "it diverged"
        raise KeyboardInterrupt

    arguments = ["compare", *SET, "--rounds", "1", "--seeds", "0", "--out", str(tmp_path)]
    assert inside(monkeypatch, *arguments, "--methods", "fedgh") == 0
    monkeypatch.setattr(sweep, "run_trials", stopped)
    capsys.readouterr()
    assert inside(monkeypatch, *arguments, "--methods", "standalone,fedgh,fd") == 130
    printed = capsys.readouterr()
    assert f"the finished runs: fedgh report {tmp_path}" in printed.out
    assert "the same command resumes here" in printed.err
    found = sweep_folder.read(tmp_path)
    assert [*found.runs] == ["fedgh"]
    assert found.missing == {"standalone, seed 0": sweep.NOT_RUN, "fd, seed 0": "it diverged"}


def test_without_the_packages_for_reports_compare_says_how_to_get_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgh.extras.find_spec", lambda _: None)
    arguments = ["compare", *SET, "--rounds", "1", "--seeds", "0", "--out", str(tmp_path)]
    assert inside(monkeypatch, *arguments, "--methods", "fedgh") == 0
    assert capsys.readouterr().out.rstrip().endswith("pip install '.[report]'")
    assert not (tmp_path / "report.html").exists()
    assert inside(monkeypatch, "report", str(tmp_path), "--format", "latex") == 0
    assert r"\toprule" in capsys.readouterr().out


def test_tune_chooses_on_the_validation_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tune", *SET, "--grid", "local.lr=0.0001,0.05", "--grid", "local.epochs=1,2"]
    arguments += ["--set", "method.name=lg_fedavg", "--out", str(tmp_path)]
    assert inside(monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    rows = json.loads((tmp_path / "search.json").read_text())["rows"]
    assert len(rows) == 4
    accuracies = [row["validation_accuracy"] for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    assert f"best: {rows[0]['label']};" in out
    assert f"report     {tmp_path / 'report.html'}" in out
    assert "lr = 0.05" in (tmp_path / "best.toml").read_text()
    # Make the worst point look perfect on test data: the choice must not change.
    for row in rows[1:]:
        folder = tmp_path / f"{row['label']}-seed0"
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        for line in lines:
            line["accuracy_per_client"] = [1.0] * 5
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        shutil.rmtree(folder / "checkpoint")  # it has a digest of the records
    assert inside(monkeypatch, *arguments) == 0
    assert f"best: {rows[0]['label']};" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune"], "nothing to search"),
        (["tune", "--grid", "local.epochs"], "expected section.key=value"),
        (["compare", "--seeds", "one"], "expected whole numbers"),
        (["compare", "--methods", "fedghh"], "did you mean 'fedgh'"),
    ],
)
def test_mistakes_in_arguments_are_explained(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inside(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err
