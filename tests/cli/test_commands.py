"""The commands as a user types them: complete runs, interruptions and mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len

from fedgh import cli
from fedgh.config import DataSection
from fedgh.data.sources import Source
from fedgh.runs.folder import RunFolder
from fedgh.training import experiment, loop
from tests.support.commands import PATIENCE, ROOT, SET, fedgh, inside, session_members, start
from tests.support.states import states
from tests.support.tiny import numbers, quick


def test_run_ends_with_a_table_and_a_complete_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = fedgh("run", *SET, "--set", "federation.target=0.1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in ("round 3: accuracy", "client", "classes", "samples", "mean", "sent", str(out)):
        assert text in done.stdout
    summary = json.loads((out / "summary.json").read_text())
    assert f"global     {100 * summary['final_global_accuracy']:.1f}%, mean over all" in done.stdout
    assert f"accuracy   {100 * summary['final_accuracy']:.1f}%" in done.stdout
    assert summary.keys() >= {
        *("method", "data", "seed", "rounds", "final_accuracy", "best_accuracy", "target"),
        *("rounds_to_target", "bytes_to_target", "bytes_per_client_round"),
        *("paper_bytes_per_client_round", "versions", "machine"),
    }
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    for record in records:
        assert record.keys() >= {
            *("round", "participants", "accuracy", "accuracy_per_client", "train_loss"),
            *("bytes_up", "bytes_down", "bytes_total", "rejected", "failed", "seconds"),
        }
        assert record["seconds"].keys() >= {"train", "summarise", "evaluate", "server", "total"}
        mean = sum(record["accuracy_per_client"]) / 5
        assert record["accuracy"] == pytest.approx(mean)
    assert summary["final_accuracy"] == records[-1]["accuracy"]
    assert [record["global_accuracy"] for record in records[:2]] == [None, None]
    everywhere = records[-1]["global_accuracy_per_client"]
    assert summary["final_global_accuracy"] == pytest.approx(sum(everywhere) / 5)
    assert summary["rounds_to_target"] == 1
    # Only FedGH's own messages: two int32 labels and two means up, the header down.
    assert records[0]["bytes_up"] == 5 * 2 * (4 + 16 * 4)
    assert records[0]["bytes_down"] == 5 * (10 * 16 + 10) * 4


def test_the_written_configuration_gives_the_same_results_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert inside(monkeypatch, "run", *SET, "--out", str(one), "--quiet") == 0
    assert inside(monkeypatch, "run", str(one / "config.toml"), "-q", "--out", str(two)) == 0
    assert capsys.readouterr() == ("", "")
    assert numbers(RunFolder.open(one)) == numbers(RunFolder.open(two))
    assert states(RunFolder.open(one)) == states(RunFolder.open(two))


def test_a_second_run_gets_a_new_folder_and_never_overwrites_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "-q", *SET, "--set", "federation.rounds=1"]
    assert inside(monkeypatch, *arguments) == 0
    assert inside(monkeypatch, *arguments) == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["demo", "demo-2"]
    assert inside(monkeypatch, *arguments, "--out", "runs/demo") == 1
    assert "fedgh resume runs/demo" in capsys.readouterr().err


def test_a_dangling_link_in_place_of_the_runs_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(tmp_path / "disk that is not mounted")
    assert inside(monkeypatch, "run", "-q", *SET) == 1
    assert "error: runs: " in capsys.readouterr().err


LONGER = ["federation.rounds=30", "local.epochs=4"]  # long enough to be interrupted
LONG = ["run", *SET, *(word for override in LONGER for word in ("--set", override))]
LONG += ["--engine", "workers", "--workers", "2"]


def start_and_wait_for(out: Path, rounds: int) -> subprocess.Popen[str]:
    """Start a run and return when it has completed `rounds` rounds; 0: while workers start."""
    process = start(*LONG, "--out", str(out))
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        lines = out / "rounds.jsonl"  # exists as soon as the run begins
        if lines.exists() and lines.read_text().count("\n") >= rounds:
            return process
        time.sleep(0.005)
    pytest.fail(f"no round {rounds}: {process.communicate()}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    prepared = quick(*LONGER)
    return loop.run(prepared, tmp_path_factory.mktemp("uninterrupted") / "run")


@pytest.mark.faults
def test_kill_9_loses_at_most_the_current_round(uninterrupted: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start_and_wait_for(out, 2)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert not (out / "summary.json").exists()
    resumed = loop.resume(out, engine="serial")
    assert numbers(resumed) == numbers(uninterrupted)
    assert states(resumed) == states(uninterrupted)


@pytest.mark.faults  # tests/faults kills a run at every write in make test
@pytest.mark.parametrize("rounds", [0, 2])
def test_ctrl_c_ends_all_processes_and_prints_how_to_resume(
    rounds: int, uninterrupted: RunFolder, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = start_and_wait_for(out, rounds)
    if rounds == 0:
        time.sleep(1)  # while the workers start, which takes a few seconds
    os.killpg(process.pid, signal.SIGINT)  # to every process of the group, as a terminal does
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert stderr.strip() == f"stopped; resume with: fedgh resume {out}"
    deadline = time.monotonic() + PATIENCE
    while session_members(process) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session_members(process) == []
    if rounds:
        done = fedgh("resume", str(out))
        assert done.returncode == 0, done.stderr
        assert "are already done" in done.stdout
        assert numbers(RunFolder.open(out)) == numbers(uninterrupted)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "dmeo"], 2, "error: no experiment or file 'dmeo'; did you mean 'demo'?"),
        (["run", "--set", "local.epoch=5"], 2, "error: local.epoch: no key 'epoch'; did you mean"),
        (["run", "--set", "local.epochs=many"], 2, "local.epochs: should be a valid integer"),
        (
            ["run", "--set", "model.extractors=cnn9"],
            2,
            "error: model.extractors: no extractor 'cnn9'",
        ),
        (
            ["run", "--set", "model.extractors=tests.support.tiny:wrong_width"],
            2,
            "model.rep_dim = 500 asks for",
        ),
        (["run", "--set", "federation.clients=2"], 2, "cannot hold all 10 classes"),
        (["run", "--set", "data.name=npz"], 2, "error: data.path: data.name = 'npz' needs it"),
        (["run", "--set", "federation.clients=9999"], 2, "1797 samples are too few"),
        (["run", "--set", "method.x=1", "--set", "methd.y=2"], 2, "did you mean 'method'?"),
        (["run", "--engine", "cloud"], 2, "'cloud' is not one of"),
        (["run", "--workers", "-1"], 2, "Invalid value for '--workers'"),
        (["run", "--nonsense"], 2, "No such option"),
        (["partition", "--set", "data.classes_per_client=11"], 2, "there are 10 classes in all"),
        (["resume", "nowhere"], 1, "error: nowhere is not a run folder"),
        (["audit", "nowhere"], 1, "error: nowhere is not a run folder"),
        (["list", "animals"], 2, "'animals' is not one of"),
        (["data", "fetch", "cifar11"], 2, "no data set to fetch 'cifar11'; did you mean 'cifar10"),
        (["runn"], 2, "No such command 'runn'"),
    ],
)
def test_mistakes_are_explained_in_a_line_without_a_traceback(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside(monkeypatch, *arguments) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "runs").exists()


def test_a_run_in_which_all_clients_fail_exits_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run",
        *SET,
        "--set",
        "model.extractors=tests.support.tiny:failing",
        "--out",
        str(tmp_path / "run"),
    ]
    assert inside(monkeypatch, *arguments) == 1
    assert "all 5 participants failed; client 0: ValueError: out of" in capsys.readouterr().err


def test_partition_draws_the_classes_of_every_client(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(monkeypatch, "partition") == 0
    out = capsys.readouterr().out
    assert "1797 samples" in out
    assert "each held by 2 of 10 clients" in " ".join(out.split())
    assert out.count("█") + out.count("▓") == 20
    assert inside(monkeypatch, "partition", "--set", "data.samples=18") == 0
    few = " ".join(capsys.readouterr().out.split())
    tests = re.search(r"(\d+) test", " ".join(out.split()))
    assert tests is not None
    assert f"{180 + int(tests[1])} samples: 160 train, 20 validation, {tests[1]} test" in few


def test_run_in_a_narrow_terminal_with_only_ascii(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedgh", "run", *SET, "--out", str(tmp_path / "r\u00fcn [b]")],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "24"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert b"[b]" in done.stdout


def test_partition_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert inside(monkeypatch, "partition") == 0
    heading, *rows, _, _ = capsys.readouterr().out.splitlines()
    assert heading.split() == ["classes", "0"]
    assert any("█" in row for row in rows)


@pytest.mark.parametrize("columns", [80, 120, 300])
def test_partition_has_the_whole_names_of_classes(
    columns: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [
        "basal cell carcinoma",
        "benign [keratosis] or lichen planus",
        "melanoma",
        "爬虫类动物",
    ]
    for name in names:
        (tmp_path / name).mkdir()
        for number in range(9):
            image = np.full((8, 8, 3), number, np.uint8)
            Image.fromarray(image).save(tmp_path / name / f"{number}.png")
    monkeypatch.setenv("COLUMNS", str(columns))
    data = ["data.name=image-folder", f"data.path={tmp_path}", "data.partition=iid"]
    clients = ["federation.clients=3", "model.extractors=perceptron"]
    options = [word for setting in (*data, *clients) for word in ("--set", setting)]
    assert inside(monkeypatch, "partition", *options) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert "\nlinear accuracy of this partition" in out
    assert max(map(cell_len, out.splitlines())) <= columns
    heading, first, *_ = out.splitlines()
    assert cell_len(heading) == cell_len(first)
    assert sum(map(int, re.findall(r"(\d+)[░▒▓█]", out))) == 36


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert inside(monkeypatch, "run", *SET, "--out", str(tmp_path / "file" / "run")) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Errno" not in err
    with pytest.raises(SystemExit), cli.errors_as_messages():
        (tmp_path / "file" / "report.html").write_text("")
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith(f"error: {tmp_path / 'file' / 'report.html'}: Not a directory; check the")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", ["headers", "fedgh", "The server trains one header", "standalone"]),
        ("models", ["cnn1", "2,621,558", "mlp", "cnn1@1/2", "package.module:function"]),
        ("studies", ["table-hetero", "Clients with different networks", "overlap"]),
        ("datasets", ["digits", "cifar10", "cifar100", "fashion-mnist", "image-folder", "npz"]),
        ("experiments", ["demo", "cifar10-hetero", "cifar100-hetero"]),
    ],
)
def test_list_shows_the_names_of_a_kind(
    kind: str,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inside(monkeypatch, "list", kind) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names)


@pytest.mark.parametrize(
    ("option", "shown", "left_out"),
    [
        ("--different-networks", "fedproto", "whole networks"),
        ("--private", "fedproto", "lg_fedavg"),
        ("--no-public-data", "fedproto", "fedmd"),
        ("--settings", "server_lr = 0.01", "The server trains one header"),
    ],
)
def test_list_methods_filters_and_shows_settings(
    option: str,
    shown: str,
    left_out: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inside(monkeypatch, "list", "methods", option) == 0
    out = capsys.readouterr().out
    assert shown in out
    assert left_out not in out
    assert inside(monkeypatch, "list", "models", option) == 2
    assert "are for methods, not for models" in capsys.readouterr().err


def test_a_terminal_shows_a_progress_bar(tmp_path: Path) -> None:
    """In a pseudo-terminal the run shows a bar instead of one line per round."""
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgh", "run", *SET, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    assert process.wait(timeout=60) == 0
    text = shown.decode()
    assert "━" in text
    assert "3/3" in text
    assert "round 3:" not in text


def test_a_run_and_its_report_load_the_data_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = []
    load = experiment.load_source

    def counted(data: DataSection) -> Source:
        loaded.append(data.name)
        return load(data)

    monkeypatch.setattr(experiment, "load_source", counted)
    arguments = ["run", *SET, "--set", "run.engine=serial", "--out", str(tmp_path / "run")]
    assert inside(monkeypatch, *arguments) == 0
    assert (tmp_path / "run" / "confusion.json").exists()
    assert loaded == ["digits"]
