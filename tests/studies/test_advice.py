"""Rehearsals: each branch of the recommendation, gains and bytes by hand, and the command."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedgh
from fedgh import config
from fedgh.core.message import Sharing
from fedgh.core.types import Job
from fedgh.defaults import SEEDS
from fedgh.engines.host import ClientHost
from fedgh.errors import RunError
from fedgh.methods import METHODS
from fedgh.runs.folder import RunFolder
from fedgh.studies import advice
from fedgh.studies.advice import MethodGain, advise, measure, recommend
from fedgh.studies.statistics import Interval
from fedgh.studies.sweep import Outcome, Trial, plan_comparison
from fedgh.training import loop
from tests.support.commands import SET, inside
from tests.support.records import a_round
from tests.support.tiny import QUICK, a_run, quick

REHEARSED = "fedgh,fedproto,standalone:reset_header=true"

SHORT: dict[str, Any] = {"methods": "fd", "seeds": [0], "rounds": 1, "overrides": QUICK}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short rehearsal."""
    return advise("demo", out=tmp_path_factory.mktemp("rehearsal"), **SHORT).folder


def a_row(
    label: str,
    low: float,
    sent: float = 100,
    *,
    shares: Sharing = "class means",
    lead: float | None = None,
    test: float = 0.0,
) -> MethodGain:
    """Return a row with a gain of at least `low` points (validation data) and `test` (test)."""
    gain, validation, ahead = (
        Interval(mean / 100, (mean - 1) / 100, (mean + 1) / 100)
        for mean in (test, low + 1, (low if lead is None else lead) + 1)
    )
    over = "standalone" if lead is None else "control"
    return MethodGain(label, shares, 0.9, None, gain, validation, ahead, over, sent)


def alone(label: str = "standalone", low: float = -1.0) -> MethodGain:
    return a_row(label, low, 0, shares="nothing")


def test_the_method_with_the_highest_lower_end_is_recommended() -> None:
    rows = [alone(), a_row("a", 1.0, 50), a_row("b", 3.0, 2048, test=2.5)]
    label, reason = recommend(rows, rounds=10)
    assert label == "b"
    assert reason == (
        "b gains +4.0 [+3.0, +5.0] points over training alone on validation data "
        "(+2.5 [+1.5, +3.5] on test data) for 2.0 KB per client in 10 rounds"
    )


def test_of_methods_within_a_point_the_cheapest_is_recommended() -> None:
    label, reason = recommend([alone(), a_row("a", 2.2, 50), a_row("b", 3.0, 2048)], rounds=10)
    assert label == "a"
    assert reason.endswith("; the lower end of b is less than a point higher, for 2.0 KB")
    assert recommend([alone(), a_row("a", 1.9, 50), a_row("b", 3.0, 2048)], rounds=10)[0] == "b"


def test_a_control_is_recommended_unless_a_method_is_ahead_of_it() -> None:
    control = alone("control", low=2.0)
    label, reason = recommend([alone(), control, a_row("a", 3.0, lead=-0.5)], rounds=10)
    assert label == "control"
    assert "shares nothing and gains +3.0 [+2.0, +4.0] points" in reason
    assert reason.endswith("do not federate")
    label, reason = recommend([alone(), control, a_row("a", 3.0, lead=0.5)], rounds=10)
    assert label == "a"
    assert "(+0.0 [-1.0, +1.0] on test data, which do not confirm it)" in reason
    assert reason.endswith("and +1.5 [+0.5, +2.5] over control, which shares nothing")


def test_training_alone_is_recommended_unless_a_gain_is_certain() -> None:
    rows = [alone(), a_row("a", -0.8, test=50.0), a_row("b", -0.1)]
    label, reason = recommend(rows, rounds=10)
    assert label is None, "test data are not used to choose"
    assert "the largest gain, of b, is +0.9 [-0.1, +1.9] points over training alone" in reason
    # Ahead of training alone, but not surely of a control, whose own gain is not certain.
    rows = [alone(), alone("control", low=-0.1), a_row("a", 0.5, lead=-0.2)]
    label, reason = recommend(rows, rounds=10)
    assert label is None
    assert "and +0.8 [-0.2, +1.8] over control" in reason
    assert recommend([alone()], 10) == (None, "no method that exchanges data was rehearsed")


def fake_run(
    path: Path, validation: list[float], test: list[float], totals: list[int]
) -> RunFolder:
    """Return a finished run with these scores in every round and `totals` bytes after each."""
    run = a_run(path)
    for number, total in enumerate(totals, 1):
        scores = {"accuracy_per_client": test, "validation_accuracy_per_client": validation}
        run.append(a_round(number, 0.5, bytes_total=total, **scores))
    return run


def test_gains_and_bytes_worked_by_hand(tmp_path: Path) -> None:
    labels = "standalone,standalone:reset_header=true,fedproto"
    scores: dict[str, Any] = {  # validation, test, bytes after each round
        "standalone": ([0.5, 0.5], [0.6, 0.6], [0, 0]),
        "standalone:reset_header=true": ([0.6, 0.6], [0.5, 0.5], [0, 0]),
        "fedproto": ([0.8, 0.6], [0.7, 0.9], [10, 40]),
    }
    trials = plan_comparison(
        "demo", labels, [0], ["federation.clients=2", "data.classes_per_client=5"]
    )
    runs = [
        (trial, fake_run(tmp_path / str(number), *scores[trial.label]))
        for number, trial in enumerate(trials)
    ]
    _, control, fedproto = measure(Outcome(runs, {}), rounds=5)
    assert (control.shares, fedproto.shares) == ("nothing", "class means")
    assert control.validation_gain.mean == pytest.approx(0.1)
    assert control.gain.mean == pytest.approx(-0.1)
    assert fedproto.accuracy == pytest.approx(0.8)
    assert fedproto.gain.mean == pytest.approx(0.2)  # 0.1 and 0.3
    assert fedproto.gain.high == pytest.approx(min(1.0, 0.2 + 0.1 * 12.706), abs=1e-3)
    assert fedproto.validation_gain.mean == pytest.approx(0.2)
    assert fedproto.lead_over == "standalone:reset_header=true"  # best on validation data
    assert fedproto.lead.mean == pytest.approx(0.1)
    assert fedproto.bytes_per_client == (40 + 3 * 30) / 2
    assert fedproto.global_accuracy is None


def test_runs_with_different_numbers_of_clients_are_not_compared(tmp_path: Path) -> None:
    trials = plan_comparison("demo", "standalone,fd", [0])
    runs = [
        (trials[0], fake_run(tmp_path / "a", [0.5, 0.5], [0.5, 0.5], [0])),
        (trials[1], fake_run(tmp_path / "b", [0.5], [0.5], [0])),
    ]
    with pytest.raises(RunError, match="have no evaluated client in common"):
        measure(Outcome(runs, {}), rounds=5)


def test_bytes_are_extrapolated_to_the_whole_experiment(tmp_path: Path) -> None:
    """FedProto has no download in its first round, so rounds have different sizes."""
    found = advise(config.load("demo", QUICK), methods="fedproto", rounds=2, out=tmp_path / "a")
    sent = []
    for seed in SEEDS:
        whole = quick("method.name=fedproto", f"federation.seed={seed}")
        records = loop.run(whole, tmp_path / f"whole-{seed}").records()
        assert records[0].bytes_down < records[1].bytes_down
        sent.append(records[-1].bytes_total / 5)
    assert found.rows[1].bytes_per_client == pytest.approx(sum(sent) / 3)


@pytest.mark.parametrize("method", ["fedgh", "fedgh_plus"])
def test_a_rehearsal_has_the_noise_per_round_of_the_whole_experiment(method: str) -> None:
    arguments = [f"method.name={method}", "privacy.protects=client", "privacy.epsilon=3.0"]
    whole = quick(*arguments, "federation.rounds=10")
    short = quick(*arguments, "federation.rounds=2").config
    config_of_rehearsal = advice.with_whole_noise(Trial(method, 0, short), whole.config).config
    rehearsed = replace(whole, config=config_of_rehearsal).privacy
    assert whole.privacy is not None
    assert rehearsed is not None
    noise = whole.privacy.noise_multiplier
    assert rehearsed.noise_multiplier == pytest.approx(noise, rel=1e-6)
    without_privacy = Trial("fedgh", 0, quick().config)
    assert advice.with_whole_noise(without_privacy, quick().config) is without_privacy


def test_advise_as_a_user_types_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "advise",
        *SET,
        "--methods",
        f"{REHEARSED},fedavg",
        "--seeds",
        "0,1",
        "--rounds",
        "2",
    ]
    arguments += ["--out", str(tmp_path)]
    assert inside(monkeypatch, *arguments, "--set", "run.global_accuracy=every") == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "advice.csv").open()))
    document = json.loads((tmp_path / "advice.json").read_text())
    assert [row["label"] for row in rows] == ["standalone", *REHEARSED.split(",")]
    assert rows[1]["gain_low"] == str(document["rows"][1]["gain"]["low"])
    assert float(rows[1]["bytes_per_client"]) == 3 * (2 * (4 + 16 * 4) + (10 * 16 + 10) * 4)
    assert "fedavg needs the same network at all clients" in document["missing"]["fedavg"]
    recommended = document["recommendation"] or "do not federate"
    assert f"recommended  {recommended}\nwhy          {document['reason']}\n" in out
    for caveat in document["caveats"]:
        assert f"but          {caveat}\n" in out
    assert "2 of 3 rounds were rehearsed" in out
    assert f"written to   {tmp_path / 'advice'}.csv and .json" in out
    for row in rows:
        finals = [
            RunFolder(tmp_path / f"{row['label']}-seed{seed}".replace(":", ",")).records()[-1]
            for seed in (0, 1)
        ]
        for key in ("accuracy", "global_accuracy"):
            mean = sum(final.scores[key] or 0 for final in finals) / 2
            assert float(row[key]) == pytest.approx(mean)
            assert f"{100 * mean:.1f}%" in out


def test_a_stopped_rehearsal_is_resumed_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["advise", *SET, "-q", "--methods", "fedgh", "--seeds", "0", "--out"]
    assert inside(monkeypatch, *arguments, str(tmp_path / "whole")) == 0
    jobs: list[Job] = []
    original = ClientHost.run

    def counting(stop_after: int) -> Callable[[ClientHost, Job], Any]:
        def run(host: ClientHost, job: Job) -> Any:
            if len(jobs) == stop_after:
                raise KeyboardInterrupt
            jobs.append(job)
            return original(host, job)

        return run

    part = str(tmp_path / "part")
    monkeypatch.setattr(ClientHost, "run", counting(stop_after=22))  # of 2 methods, 3 rounds, 5
    assert inside(monkeypatch, *arguments, part) == 130
    assert capsys.readouterr().err == "\nstopped; the same command resumes here\n"
    jobs.clear()
    monkeypatch.setattr(ClientHost, "run", counting(stop_after=100))
    assert inside(monkeypatch, *arguments, part) == 0
    assert len(jobs) == 2 * 5  # the two rounds that were not complete
    jobs.clear()
    assert inside(monkeypatch, *arguments, part) == 0
    assert jobs == []
    one, two = (
        json.loads((tmp_path / name / "advice.json").read_text()) for name in ("whole", "part")
    )
    assert one["rows"] == two["rows"]
    assert one["reason"] == two["reason"]
    assert "the intervals of one seed are too narrow" in " ".join(one["caveats"])


def test_advise_in_python_with_a_file_and_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(config.load("demo", QUICK).to_toml())
    found = fedgh.advise("my.toml", methods="fd", seeds=[0])
    assert isinstance(found, fedgh.Advice)
    assert found.folder == Path("runs/advise-my")
    assert [row.label for row in found.rows] == ["standalone", "fd"]
    assert found == fedgh.advise("my.toml", methods="standalone, fd", seeds=[0])
    assert fedgh.advise(fedgh.load("my.toml"), methods="fd", seeds=[0], rounds=1).folder == Path(
        "runs/advise-digits"
    )


def test_the_default_methods_are_rehearsed_with_that_of_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advice.DEFAULT_METHODS[:5] == ["standalone", "fedproto", "fedgh", "fd", "lg_fedavg"]
    assert {label.partition(":")[0] for label in advice.DEFAULT_METHODS} <= METHODS.keys()
    demo, other = config.load("demo"), config.load("demo", ["method.name=fml"])
    assert advice.labels(None, demo) == ",".join(advice.DEFAULT_METHODS)
    assert advice.labels(None, other) == ",".join([*advice.DEFAULT_METHODS, "fml"])
    assert advice.labels("all", demo) == "all"
    monkeypatch.setattr(advice, "DEFAULT_METHODS", ["standalone", "fedgh", "fedgh:server_lr=0"])
    frozen = config.load("demo", ["method.server_lr=0"])
    assert advice.labels(None, frozen) == "standalone,fedgh", (
        "equal configurations are rehearsed once"
    )


def test_a_rehearsal_fails_if_training_alone_fails(tmp_path: Path) -> None:
    arguments = [*QUICK, "local.lr=1e30"]
    with pytest.raises(RunError, match=r"training alone, .* failed: .*lower local\.lr"):
        advise("demo", methods="fd", seeds=[0], rounds=1, overrides=arguments, out=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["dmeo"], 2, "no experiment or file 'dmeo'; did you mean 'demo'?"),
        (["--methods", "fedghh"], 2, "did you mean 'fedgh'"),
        (["--methods", "standalone,"], 2, "name at least one method beside standalone"),
        (["--rounds", "4"], 2, "4 rounds cannot be rehearsed: choose 1 to 3"),
        (["--rounds", "0"], 2, "Invalid value for '--rounds'"),
        (["--seeds", "one"], 2, "expected whole numbers"),
        (["--seeds", ","], 2, "there is nothing to run"),
        (["--set", "federation.seed=1"], 2, "seeds of a sweep are given with --seeds"),
        (["--methods", "fedavg"], 1, "no method has a result to compare; fedavg: fedavg needs"),
    ],
)
def test_mistakes_in_arguments_are_explained(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside(monkeypatch, "advise", *arguments, *SET, "-q") == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("global_accuracy", "high", r"0\.scores\.global_accuracy"),
        ("accuracy_per_client", [7.0] * 5, ".* accuracy has an impossible value"),
        ("validation_accuracy_per_client", [-1.0] * 5, "validation_accuracy has an impossible"),
        ("bytes_total", 10**400, r"0\.bytes_total"),
    ],
)
def test_a_run_with_impossible_numbers_is_refused(
    key: str, value: object, reason: str, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "copy")
    run = tmp_path / "copy" / "fd-seed0"
    shutil.rmtree(run / "checkpoint")  # it has a digest of the records
    record = json.loads((run / "rounds.jsonl").read_text())
    (run / "rounds.jsonl").write_text(json.dumps({**record, key: value}) + "\n")
    with pytest.raises(RunError, match=f"is not what a run writes: .*{reason}"):
        advise("demo", out=tmp_path / "copy", **SHORT)
