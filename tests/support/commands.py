"""Run fedgh commands, in a process or in this one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedgh import cli
from tests.support.tiny import QUICK

ROOT = Path(__file__).parent.parent.parent


PATIENCE = 120  # seconds; a busy machine may need many for what takes one


SET = [word for override in QUICK for word in ("--set", override)]


def fedgh(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "fedgh", *words],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=PATIENCE,
    )


def inside(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command in this process, which is faster; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["fedgh", *words])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return code if isinstance(code, int) else 0


def start(*words: str) -> subprocess.Popen[str]:
    """Start a command in a session of its own; it can be interrupted."""
    return subprocess.Popen(
        [sys.executable, "-m", "fedgh", *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A test in the background may inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def session_members(process: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the living processes that a command in a session of its own has started."""
    ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            ids.append(int(stat.parent.name))
    return ids
