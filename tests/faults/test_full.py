"""A full disk, a missing permission: one line that says so, and then the run goes on."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.disk import Fault
from tests.faults.driver import Driver, Outcome
from tests.faults.end import end
from tests.faults.test_kill import CASES, NewPlace, some_or_all
from tests.tiny import QUICK

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

NOBODY = 65534 if os.geteuid() == 0 else None
"""Somebody whom permissions stop."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount")


def assert_explained(outcome: Outcome, place: Path) -> None:
    """One line that names a file and says what to do."""
    assert outcome.code == 1, outcome.words
    (line,) = outcome.words.splitlines()
    assert line.startswith("error: "), line
    assert str(place) in line
    advice = ("go on with `fedgh resume`", "start it again", "put it back from a copy", "allow it")
    assert any(words in line for words in advice), line


@some_or_all
@pytest.mark.parametrize(
    ("how", "error"),
    [("full", errno.ENOSPC), ("forbidden", errno.EACCES), ("forbidden", errno.EROFS)],
)
@pytest.mark.parametrize("case", ["run", "run, rare checkpoints"])
def test_what_cannot_be_written_is_said_and_later_done(
    case: str, how: str, error: int, stride: int, driver: Driver, new_place: NewPlace
) -> None:
    scenario, settings = CASES[case]
    place = new_place()
    straight = driver.play(place, scenario=scenario, settings=settings)
    expected = end(place)
    for number in range(len(straight.operations), 0, -stride * 2 if stride > 1 else -1):
        place = new_place()
        fault = Fault(number, how, error)
        failed = driver.play(place, fault, scenario=scenario, settings=settings)
        if how == "forbidden" or failed.code != 0:  # a full disk still syncs and deletes
            assert_explained(failed, place)
            assert os.strerror(error) in failed.words
        again = driver.play(place, scenario=scenario, settings=settings)
        assert again.code == 0, (fault, again.words)
        assert end(place) == expected, fault
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("name", "mode", "harmless"),
    [
        ("run", 0o555, False),
        ("run/checkpoint", 0o555, False),
        ("run/checkpoint", 0o000, False),
        ("run/checkpoint/server.safetensors", 0o000, False),
        ("run/checkpoint/server.safetensors", 0o444, True),
        ("run/checkpoint/client-000000.round-000001.safetensors", 0o000, False),
        ("run/rounds.jsonl", 0o000, False),
        ("run/rounds.jsonl", 0o444, True),
        ("run/config.toml", 0o000, False),
        ("run/means", 0o555, False),
    ],
)
def test_permissions_that_were_taken_away(
    name: str, mode: int, harmless: bool, driver: Driver, new_place: NewPlace
) -> None:
    place = new_place()
    if NOBODY is not None:
        os.chown(place, NOBODY, NOBODY)
    operations = driver.play(place, user=NOBODY).operations
    expected = end(place)
    commit = "run/checkpoint/server.safetensors"
    commits = [k for k, op in enumerate(operations, 1) if (op.kind, op.other) == ("rename", commit)]
    half_way = Fault(commits[1] + 3, "kill")  # in the second round
    shutil.rmtree(place / "run")
    assert driver.play(place, half_way, user=NOBODY).code == -9

    path = place / name
    before = path.stat().st_mode
    path.chmod(mode)
    outcome = driver.play(place, user=NOBODY)
    path.chmod(before)
    if not harmless:
        assert_explained(outcome, place)
        outcome = driver.play(place, user=NOBODY)
    assert outcome.code == 0, outcome.words
    assert end(place) == expected


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[None]:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "fedgh-faults", place], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", place], check=True)


@needs_root
@pytest.mark.faults
@pytest.mark.parametrize("kilobytes", [4, 24, 48, 64, 80, 96, 112])
def test_a_disk_that_is_really_full(kilobytes: int, driver: Driver, new_place: NewPlace) -> None:
    straight, place = new_place(), new_place()
    driver.play(straight)
    with small_disk(place, kilobytes):
        assert_explained(driver.play(place), place)
        remount(place, "size=10m")
        again = driver.play(place)
        assert again.code == 0, again.words
        assert end(place) == end(straight)


@needs_root
@pytest.mark.faults
def test_a_disk_that_is_really_read_only(driver: Driver, new_place: NewPlace) -> None:
    straight, place = new_place(), new_place()
    driver.play(straight)
    with small_disk(place, 10_000):
        assert driver.play(place, Fault(60, "kill")).code == -9
        remount(place, "ro")
        outcome = driver.play(place)
        assert_explained(outcome, place)
        assert "Read-only file system" in outcome.words
        remount(place, "rw")
        assert driver.play(place).code == 0
        assert end(place) == end(straight)


@needs_root
@pytest.mark.faults
def test_worker_processes_on_a_full_disk(new_place: NewPlace) -> None:
    def fedgh(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fedgh", *words], capture_output=True, text=True, check=False
        )

    settings = [word for setting in QUICK for word in ("--set", setting)]
    workers = [*settings, "--engine", "workers", "--workers", "2", "--quiet"]
    straight, place = new_place(), new_place()
    assert fedgh("run", "demo", *workers, "--out", str(straight / "run")).returncode == 0
    with small_disk(place, 60):
        full = fedgh("run", "demo", *workers, "--out", str(place / "run"))
        outcome = Outcome(full.returncode, full.stderr, [])
        assert_explained(outcome, place)
        assert "No space left on device" in outcome.words
        remount(place, "size=100m")
        again = fedgh("resume", str(place / "run"), "--quiet")
        assert again.returncode == 0, again.stderr
        found, expected = end(place), end(straight)
        for name in ("run/report.html", "run/confusion.json"):
            assert found.pop(name), expected.pop(name)
        assert found == expected
