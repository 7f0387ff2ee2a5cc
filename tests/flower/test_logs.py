"""Logs of the processes of a federation have times and no colour codes, or are JSON."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedgh.flower import logs
from fedgh.flower.folder import FederationFolder
from fedgh.training import loop
from tests.flower.real import two
from tests.support.tiny import quick

SCRIPT = """
import faulthandler, sys
from logging import INFO, WARNING, getLogger
from flwr.supercore import log
from fedgh.flower import logs
logs.configure()
log(INFO, "")
log(INFO, "from %s", "Flower")
getLogger("fedgh.flower.client").warning("from fedgh")
print("printed", end=" ")
print("line\\nand another")
print("to stderr", file=sys.stderr)
faulthandler.dump_traceback_later(100, exit=True)  # needs the real standard error
raise ValueError("the end")
"""

UP = """
import sys
from pathlib import Path
from fedgh import cli
from fedgh.flower import operate
from fedgh.runs.folder import RunFolder
operate.up = lambda *_: RunFolder(Path({run!r}))
sys.argv = {up}
cli.main()
"""
"""`fedgh flower up` without its processes: the run is finished already."""

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|CRITICAL) \[[\w.]+\] .*"


def output(script: str, format_: str, code: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, logs.VARIABLE: format_},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_every_entry_has_a_time_and_no_colours() -> None:
    text = output(SCRIPT, "text")
    assert "\x1b" not in text
    entries = text.splitlines()
    assert entries[5].endswith("this process has failed")
    assert all(re.fullmatch(LINE, line) for line in entries[:6]), text
    found = [line.split("] ", 1)[1] for line in entries[:5]]
    assert found == ["from Flower", "from fedgh", "printed line", "and another", "to stderr"]
    assert entries[-1] == "ValueError: the end"


def test_json_is_one_object_per_line() -> None:
    entries = [json.loads(line) for line in output(SCRIPT, "json").splitlines()]
    assert [entry["level"] for entry in entries] == [
        *("INFO", "WARNING", "INFO", "INFO", "WARNING", "CRITICAL")
    ]
    assert entries[0]["logger"] == "flwr"
    assert entries[-1]["message"].endswith("ValueError: the end")
    assert all(entry.keys() == {"time", "level", "logger", "message"} for entry in entries)


def test_the_processes_of_flower_do_not_import_torch() -> None:
    code = "import sys, fedgh.flower.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_line_of_a_node_is_printed_in_the_chosen_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.print_line("plain")
    monkeypatch.setenv(logs.VARIABLE, "json")
    logs.print_line("the node has ended")
    logs.print_line('{"message": "from the node"}')
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plain"
    assert json.loads(lines[1])["message"] == "the node has ended"
    assert lines[2] == '{"message": "from the node"}'


def test_the_log_of_up_ends_with_the_result_and_the_report(tmp_path: Path) -> None:
    run = loop.run(quick("federation.rounds=1"), tmp_path / "run")
    made = FederationFolder.create(tmp_path / "f", two().config)
    up = ["fedgh", "flower", "up", str(made.path), "--out", str(run.path), "--log-format", "json"]
    lines = output(UP.format(run=str(run.path), up=up), "text", code=0).splitlines()
    messages = [json.loads(line)["message"] for line in lines]
    assert any(message.startswith("accuracy ") for message in messages), lines
    assert messages[-1] == f"report     {run.path / 'report.html'}"
