"""Run fedgh commands, in a process or in this one."""

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
