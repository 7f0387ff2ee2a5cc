"""A full disk or missing permissions: one line of error, and the run can be resumed."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.cases import Case, NewWorkdir, some_or_all
from tests.faults.disk import Fault
from tests.faults.driver import Outcome
from tests.faults.end import end
from tests.support.tiny import QUICK

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

UNPRIVILEGED = 65534 if os.geteuid() == 0 else None
"""A user without the privileges of root, whom permissions restrict; None if already so."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount")


def assert_clear_error(outcome: Outcome, workdir: Path) -> None:
    """Check that the output is one line of error that names a file and what to do."""
    assert outcome.code in (1, 2), outcome.output
    (line,) = outcome.output.splitlines()
    assert line.startswith("error: "), line
    assert str(workdir) in line
    advice = (
        "continue with `fedgh resume`",
        "start it again",
        "put it back from a copy",
        "allow it",
        "permissions",
    )
    assert any(text in line for text in advice), line


@some_or_all
@pytest.mark.parametrize(
    ("case", "how", "error"),
    [
        ("run", "full", errno.ENOSPC),
        ("run", "forbidden", errno.EROFS),
        ("rare", "full", errno.ENOSPC),
        ("rare", "forbidden", errno.EACCES),
    ],
    indirect=["case"],
)
def test_a_write_error_is_reported_and_the_run_resumes(
    case: Case, how: str, error: int, stride: int, new_workdir: NewWorkdir
) -> None:
    for number in range(len(case.operations), 0, -stride):
        workdir = new_workdir()
        fault = Fault(number, how, error)
        failed = case.play(workdir, fault)
        if how == "forbidden" or failed.code != 0:  # a full disk still syncs and deletes
            assert_clear_error(failed, workdir)
            assert os.strerror(error) in failed.output
        again = case.play(workdir)
        assert again.code == 0, (fault, again.output)
        assert end(workdir) == case.end, fault
        shutil.rmtree(workdir)


@pytest.fixture(scope="module")
def interrupted_run(case_of: Callable[[str], Case], new_workdir: NewWorkdir) -> Path:
    """A run of an unprivileged user that was killed in its second round."""
    case, workdir = case_of("run"), new_workdir()
    if UNPRIVILEGED is not None:
        os.chown(workdir, UNPRIVILEGED, UNPRIVILEGED)
    assert case.play(workdir, case.killed_after_commit(1), user=UNPRIVILEGED).code == -9
    return workdir


@pytest.mark.parametrize(
    ("name", "mode", "harmless"),
    [
        ("run", 0o555, False),
        ("run/checkpoint", 0o555, False),
        ("run/checkpoint", 0o000, False),
        ("run/checkpoint/server.safetensors", 0o000, False),
        ("run/checkpoint/server.safetensors", 0o444, True),
        ("run/checkpoint/clients-000001.round-000001.states", 0o000, False),
        ("run/rounds.jsonl", 0o000, False),
        ("run/rounds.jsonl", 0o444, True),
        ("run/config.toml", 0o000, False),
        ("run/means", 0o555, False),
    ],
)
def test_missing_permissions_are_reported_and_the_run_resumes(
    name: str, mode: int, harmless: bool, interrupted_run: Path, case: Case, new_workdir: NewWorkdir
) -> None:
    workdir = new_workdir()
    subprocess.run(["cp", "-a", f"{interrupted_run}/.", workdir], check=True)  # -a keeps the owners
    path = workdir / name
    before = path.stat().st_mode
    path.chmod(mode)
    outcome = case.play(workdir, user=UNPRIVILEGED)
    path.chmod(before)
    if not harmless:
        assert_clear_error(outcome, workdir)
        outcome = case.play(workdir, user=UNPRIVILEGED)
    assert outcome.code == 0, outcome.output
    assert end(workdir) == case.end


@contextmanager
def small_disk(workdir: Path, kilobytes: int) -> Iterator[None]:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "fedgh-faults", workdir], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", workdir], check=True)


def remount(workdir: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", workdir], check=True)


@needs_root
@pytest.mark.faults
@pytest.mark.parametrize("kilobytes", [4, 24, 40, 56, 64, 80, 96])
def test_a_run_on_a_full_disk_is_resumed_on_a_larger_one(
    kilobytes: int, case: Case, new_workdir: NewWorkdir
) -> None:
    workdir = new_workdir()
    with small_disk(workdir, kilobytes):
        assert_clear_error(case.play(workdir), workdir)
        remount(workdir, "size=10m")
        again = case.play(workdir)
        assert again.code == 0, again.output
        assert end(workdir) == case.end


@needs_root
@pytest.mark.faults
def test_a_run_on_a_read_only_disk_is_resumed_on_a_writable_one(
    case: Case, new_workdir: NewWorkdir
) -> None:
    workdir = new_workdir()
    with small_disk(workdir, 10_000):
        assert case.play(workdir, case.killed_after_commit(1)).code == -9
        remount(workdir, "ro")
        outcome = case.play(workdir)
        assert_clear_error(outcome, workdir)
        assert "Read-only file system" in outcome.output
        remount(workdir, "rw")
        assert case.play(workdir).code == 0
        assert end(workdir) == case.end


@needs_root
@pytest.mark.faults
def test_a_run_with_workers_on_a_full_disk_is_resumed(new_workdir: NewWorkdir) -> None:
    def fedgh(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedgh", *arguments], capture_output=True, text=True, check=False
        )

    settings = [word for setting in QUICK for word in ("--set", setting)]
    workers = [*settings, "--engine", "workers", "--workers", "2", "--quiet"]
    straight, workdir = new_workdir(), new_workdir()
    assert fedgh("run", "demo", *workers, "--out", str(straight / "run")).returncode == 0
    with small_disk(workdir, 60):
        full = fedgh("run", "demo", *workers, "--out", str(workdir / "run"))
        outcome = Outcome(full.returncode, full.stderr, [])
        assert_clear_error(outcome, workdir)
        assert "No space left on device" in outcome.output
        remount(workdir, "size=100m")
        again = fedgh("resume", str(workdir / "run"), "--quiet")
        assert again.returncode == 0, again.stderr
        found, expected = end(workdir), end(straight)
        for name in ("run/report.html", "run/confusion.json"):
            assert found.pop(name)
            assert expected.pop(name)
        assert found == expected
