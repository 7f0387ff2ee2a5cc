"""`fedgh report` and the report after a run, with and without the packages for reports."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedgh import extras
from fedgh.report import write
from tests.support.commands import SET, inside


@pytest.fixture
def run(folders: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders[0], tmp_path / "run"))


def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)


def test_report_writes_a_page_and_figures(
    run: Path,
    folders: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["report", str(run), "--figures", "figures", "--format", "pdf"]
    assert inside(monkeypatch, *command) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    figures = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert {"accuracy-over-rounds.pdf", "confusion-1.pdf", "means-1.pdf"} <= figures.keys()
    assert all(content.startswith(b"%PDF") for content in figures.values())
    assert inside(monkeypatch, "report", *map(str, folders)) == 0
    assert (tmp_path / "report.html").exists()
    assert inside(monkeypatch, "report", str(run), "--out", "own.html") == 0
    assert (tmp_path / "own.html").exists()


def test_a_report_of_a_folder_without_a_run_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(monkeypatch, "report", str(tmp_path)) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path} is not a run folder (it has no config.toml)"
    ]


@pytest.mark.parametrize("command", ["report", "watch"])
def test_without_the_extra_the_error_names_the_command_to_install_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    without_extras(monkeypatch)
    assert inside(monkeypatch, command, str(run)) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: a report needs more packages; in a checkout of fedgh: pip install '.[report]'"
    ]


def test_a_run_without_the_extra_succeeds_without_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_extras(monkeypatch)
    assert inside(monkeypatch, "run", *SET, "--out", str(tmp_path / "run")) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1].endswith("pip install '.[report]'")
    assert output.err == ""
    assert not (tmp_path / "run" / "report.html").exists()


def test_run_and_resume_end_with_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert inside(monkeypatch, "run", *SET, "--out", str(out)) == 0
    assert f"report     {out / 'report.html'}" in capsys.readouterr().out
    assert (out / "confusion.json").exists()
    (out / "report.html").unlink()
    assert inside(monkeypatch, "resume", str(out)) == 0
    assert f"report     {out / 'report.html'}" in capsys.readouterr().out
    assert (out / "report.html").exists()


@pytest.mark.parametrize("problem", [OSError("disk full"), KeyError("?"), KeyboardInterrupt()])
def test_a_run_succeeds_if_its_report_cannot_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
) -> None:
    def fail(*_: object) -> Path:
        raise problem

    monkeypatch.setattr(write, "write_page", fail)
    command = ["run", *SET, "--set", "federation.rounds=1", "--out", str(tmp_path / "run")]
    assert inside(monkeypatch, *command) == 0
    assert "report     not written" in capsys.readouterr().out


def test_help_does_not_import_altair() -> None:
    code = (
        "import sys, fedgh.cli\n"
        "sys.argv = ['fedgh', 'report', '--help']\n"
        "try: fedgh.cli.main()\n"
        "except SystemExit: pass\n"
        "import fedgh.report.write, fedgh.training.loop\n"
        "assert not {'altair', 'vl_convert', 'tensorboard'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--figures" in done.stdout
