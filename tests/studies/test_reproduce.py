"""`fedgh reproduce` as a user types it: every study with the smallest budget."""

import csv
import json
from html import escape
from pathlib import Path

import pytest

from fedgh.runs.folder import RunFolder
from fedgh.studies.reproduce import Reproduction
from fedgh.studies.study import TYPICAL_SEEDS, study
from tests.support.commands import inside

# Settings and methods to run of studies with many: some of each kind.
PARTS = {
    "table-homo": ["cifar10-homo", "cifar100-homo"],
    "noniid": ["cifar10-hetero-e1", "cifar10-hetero-s10", "cifar100-hetero-s100"],
    "participation": ["cifar10-hetero-n100-c10", "cifar100-hetero-n100-c100", "fedgh"],
    "header-lr": ["cifar10-hetero-lr0.1"],
    "pays": ["pays-cifar10-s2-m50", "pays-cifar100-dir0.3-m1000", "standalone", "fedgh_plus"],
    "as-published": ["as-published-n10", "as-published-n10-all", "as-published-n50-first-weights"],
    "public-data": ["public-noise", "standalone", "fedmd", "fedhenn"],
    "poisoning": ["poison-none", "poison-flip-3-defended", "poison-everything-3"],
    "privacy": ["cifar10-hetero-e1", "cifar10-hetero-sample-eps1", "cifar10-hetero-client-eps8"],
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all studies, because they share runs."""
    return tmp_path_factory.mktemp("reproduce")


def reproduce(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> int:
    if "--seeds" not in arguments:
        arguments = (*arguments, "--seeds", "0")
    arguments = ("reproduce", *arguments, "--budget", "smoke", "--out", str(out))
    return inside(monkeypatch, *arguments)


@pytest.mark.xdist_group("reproduce")
@pytest.mark.parametrize(
    "name",
    [
        *("table-hetero", "table-homo", "models", "curves-n10", "noniid", "participation"),
        *("header-lr", "convergence", "cost", "ablation", "overlap", "pays", "poisoning"),
        *("privacy", "public-data", "as-published"),
    ],
)
def test_every_study_runs_with_the_budget_smoke(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["--only", ",".join(PARTS[name])] if name in PARTS else []
    assert reproduce(monkeypatch, out, name, *only) == 0
    printed = capsys.readouterr().out
    assert ("not run: " in printed) == (name in PARTS)
    folder = out / "smoke"
    with (folder / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    text = (folder / f"{name}.md").read_text(encoding="utf-8")
    assert f"- command: fedgh reproduce {name} --budget smoke --seeds 0\n" in text
    assert escape(study(name).title) in (folder / f"{name}.html").read_text(encoding="utf-8")
    if study(name).settings:
        assert "data.name cifar10 → digits" in printed
        assert "data.name cifar10 → digits" in text


def test_without_seeds_a_study_has_those_of_its_file() -> None:
    assert Reproduction("table-homo").seeds == TYPICAL_SEEDS
    assert Reproduction("as-published").seeds == (42,)
    assert Reproduction("as-published", seeds=[0, 1]).seeds == (0, 1)


@pytest.mark.xdist_group("reproduce")
def test_missing_runs_are_listed_with_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("ablation", "--only", "cifar10-hetero")
    assert reproduce(monkeypatch, tmp_path, *arguments, "--no-run") == 0
    assert "not run: cifar10-hetero: standalone, seed 0; " in capsys.readouterr().out
    assert not (tmp_path / "smoke" / "cifar10-hetero").exists()

    # The reason of an impossible method is stored, and shown again with --no-run.
    arguments = ("table-hetero", "--only", "cifar10-hetero,fedavg,standalone")
    assert reproduce(monkeypatch, tmp_path, *arguments) == 0
    assert reproduce(monkeypatch, tmp_path, *arguments, "--no-run") == 0
    printed = capsys.readouterr().out
    assert printed.count("[1/1] cifar10-hetero: standalone, seed 0: accuracy") == 1
    reason = "cifar10-hetero: fedavg, seed 0: fedavg needs the same network at all clients"
    assert printed.count(f"no result: {reason}") == 2
    text = (tmp_path / "smoke" / "table-hetero.md").read_text(encoding="utf-8")
    assert "## Without a result" in text

    run = RunFolder.open(tmp_path / "smoke" / "cifar10-hetero" / "standalone-seed0")
    assert run.summary().data == "digits"
    assert reproduce(monkeypatch, tmp_path, *arguments, "--set", "local.lr=0.5") == 1
    assert "holds another run: local.lr is 0.01 there, 0.5 requested" in capsys.readouterr().err


def test_results_of_two_seeds_and_of_damaged_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["header-lr", "--only", "cifar10-hetero-lr0.1,fedgh:server_lr=0.01"]
    arguments += ["--seeds", "0,1", "--set", "method.server_batch=client"]
    assert reproduce(monkeypatch, tmp_path, *arguments) == 0
    printed = capsys.readouterr().out
    assert "method.server_batch pair → client" in printed
    assert "2 of 2" in printed
    setting = tmp_path / "smoke" / "cifar10-hetero-lr0.1"
    damaged = setting / "fedgh,server_lr=0.01-seed1"

    (damaged / "summary.json").unlink()
    assert reproduce(monkeypatch, tmp_path, *arguments, "--no-run") == 0
    printed = capsys.readouterr().out
    assert "1 of 2" in printed
    assert "cifar10-hetero-lr0.1: fedgh:server_lr=0.01, seed 1" in printed

    # A damaged run is refused with one line of text.
    whole = (setting / "fedgh,server_lr=0.01-seed0" / "summary.json").read_text(encoding="utf-8")
    (damaged / "summary.json").write_text(whole, encoding="utf-8")
    assert reproduce(monkeypatch, tmp_path, *arguments, "--no-run") == 1
    assert "summary.json does not agree with rounds.jsonl" in capsys.readouterr().err
    rounds = (damaged / "rounds.jsonl").read_text(encoding="utf-8")
    for summary, lines in [
        ("{}", rounds),
        ("[1, 2]", rounds),
        (whole, rounds.splitlines()[0] + "\n"),
        (whole, '{"round": 1}\n'),
        (whole, "[" * 100_000),
    ]:
        (damaged / "summary.json").write_text(summary, encoding="utf-8")
        (damaged / "rounds.jsonl").write_text(lines, encoding="utf-8")
        assert reproduce(monkeypatch, tmp_path, *arguments, "--no-run") == 1
        err = capsys.readouterr().err
        assert err.startswith(f"error: {damaged}")
        assert "and it is run again" in err


def test_a_run_without_the_values_of_a_study_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, tmp_path, "cost", "--only", "cifar10-hetero") == 0
    run = tmp_path / "smoke" / "cifar10-hetero" / "fedgh-seed0"
    data = json.loads((run / "data.json").read_text(encoding="utf-8"))
    data["shape"] = []
    (run / "data.json").write_text(json.dumps(data), encoding="utf-8")
    capsys.readouterr()
    assert reproduce(monkeypatch, tmp_path, "cost", "--no-run") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {run} does not have the values of this study (IndexError: ")


def test_a_stopped_study_shows_and_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedgh.studies.reproduce.run_study", stopped)
    assert reproduce(monkeypatch, tmp_path, "overlap") == 130
    printed = capsys.readouterr()
    assert "not run: cifar10-hetero-n50-all: standalone, seed 0; " in printed.out
    assert "the same command resumes here" in printed.err
    assert (tmp_path / "smoke" / "overlap.md").exists()


def test_tables_are_written_without_the_optional_packages_for_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedgh.extras.find_spec", lambda _: None)
    assert reproduce(monkeypatch, tmp_path, "models") == 0
    assert "pip install '.[report]'" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "smoke").iterdir()} == {"models.md", "models.csv"}


def test_mistakes_in_arguments_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, tmp_path, "table-heter") == 2
    assert "did you mean 'table-hetero'" in capsys.readouterr().err
    assert reproduce(monkeypatch, tmp_path, "table-hetero", "--only", "fedhg") == 2
    assert "did you mean 'fedgh'" in capsys.readouterr().err
    assert reproduce(monkeypatch, tmp_path, "models", "--set", "local.lr=1") == 2
    assert "models trains nothing" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
