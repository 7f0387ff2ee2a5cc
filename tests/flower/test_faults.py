"""What goes wrong in a federation of real processes: it is survived, or said in words."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgh.flower.deployment import deployed, follow
from fedgh.flower.folder import FederationFolder
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.real import federation, running_processes_of, two, wait_until
from tests.support.tiny import numbers, states, tensors

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("deployment"),  # two federations at a time miss deadlines
]

FEDGH = [sys.executable, "-m", "fedgh"]


def rounds(folder: FederationFolder) -> int:
    return len(RunFolder(folder.path / "run").records())


def started(folder: FederationFolder) -> dict[str, list[int]]:
    found: dict[str, list[int]] = json.loads(folder.processes.read_text())["processes"]
    return found


def leader(folder: FederationFolder, name: str) -> int:
    return started(folder)[name][0]


def fedgh(*arguments: str) -> str:
    done = subprocess.run(
        [*FEDGH, *arguments], capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout


def newest_states(folder: FederationFolder) -> dict[str, bytes]:
    run = RunFolder(folder.path / "run")
    found = {"server.safetensors": states(run)["server.safetensors"]}
    for own in folder.participants.iterdir():
        newest = max((own / "states").glob("experiments/*/*/*.safetensors"))
        found[newest.name] = tensors(newest)
    return found


def assert_same(folder: FederationFolder, straight: RunFolder) -> None:
    assert numbers(RunFolder(folder.path / "run")) == numbers(straight)
    assert newest_states(folder) == states(straight)


@contextmanager
def up(folder: FederationFolder) -> Iterator[subprocess.Popen[str]]:
    """`fedgh flower up` in a process of its own; it has ended, with all others, afterwards."""
    process = subprocess.Popen(
        [*FEDGH, "flower", "up", str(folder.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
        process.wait(timeout=200)
    finally:
        process.kill()
        process.wait()
        fedgh("flower", "stop", str(folder.path))
    wait_until(lambda: not running_processes_of(folder.path), seconds=10)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


def three_rounds(place: Path) -> tuple[FederationFolder, RunFolder]:
    """A federation that has not begun, and what it should come to."""
    experiment = two("federation.rounds=3", "run.deadline=90")
    straight = loop.run(experiment, place / "serial")
    return federation(place / "federation", experiment), straight


def assert_stopped_cleanly(process: subprocess.Popen[str], folder: FederationFolder) -> None:
    assert process.returncode == 130
    words = said(process)
    assert "the same command resumes" in words
    assert "Traceback" not in words
    assert not folder.processes.exists()


@pytest.mark.faults
def test_a_killed_superlink_costs_no_round(tmp_path: Path) -> None:
    folder, straight = three_rounds(tmp_path)
    with up(folder) as process:
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(3)  # into the next round
        os.kill(leader(folder, "superlink"), signal.SIGKILL)
    assert process.returncode == 1
    assert "the superlink has ended (exit code -9)" in said(process)
    assert not folder.processes.exists()
    done = rounds(folder)
    assert 1 <= done < 3

    with up(folder) as process:
        pass
    assert process.returncode == 0, said(process)
    assert f"rounds 1 to {done} are there already" in said(process)
    assert_same(folder, straight)


@pytest.mark.faults
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two())
    with up(folder) as process:
        wait_until(lambda: folder.processes.exists() and len(started(folder)) == 4)
        process.send_signal(signal.SIGINT)
    assert_stopped_cleanly(process, folder)


@pytest.mark.faults
def test_ctrl_c_and_kill_leave_a_run_that_goes_on_and_nothing_else(tmp_path: Path) -> None:
    folder, straight = three_rounds(tmp_path)
    with up(folder) as process:
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
    assert_stopped_cleanly(process, folder)
    done = rounds(folder)

    with up(folder) as process:
        wait_until(lambda: folder.processes.exists() and len(started(folder)) == 4)
        process.kill()
        process.wait()
        assert running_processes_of(folder.path)
        status = fedgh("flower", "status", str(folder.path))
        assert "superlink" in status
        assert f"round {done} of 3" in status
        assert fedgh("flower", "stop", str(folder.path)) == "stopped\n"
    assert running_processes_of(folder.path) == []
    assert fedgh("flower", "stop", str(folder.path)) == "nothing is running\n"

    with up(folder) as process:
        pass
    assert process.returncode == 0, said(process)
    assert "accuracy" in said(process)
    assert_same(folder, straight)


@pytest.mark.faults
def test_a_killed_node_sits_rounds_out_and_rejoins_with_its_own_state(tmp_path: Path) -> None:
    experiment = two("federation.rounds=6", "run.deadline=40")
    folder = federation(tmp_path / "federation", experiment)
    lines: list[str] = []
    with deployed(folder, 2, lines.append) as deployment:
        out = folder.path / "run"
        run = deployment.train(out)
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(2)
        os.killpg(leader(folder, "node-1"), signal.SIGKILL)
        finished = follow(deployment, run, out, lambda _: None)
    assert running_processes_of(folder.path) == []
    assert any("the node of client 1 has ended (exit code -9)" in line for line in lines)

    failed = [[item.client for item in r.failed] for r in finished.records()]
    missed = {(client, k + 1) for k, clients in enumerate(failed) for client in clients}
    assert missed, "it was killed in the middle of a round"
    assert {client for client, _ in missed} == {1}
    assert failed[-1] == [], "it has come back"
    late = next(r for r in finished.records() if r.failed)
    assert late.seconds["total"] < 40 + 20
    assert finished.records()[-1].accuracies[1] is not None

    # The same as if the others had been alone in those rounds, and it as it was.
    straight = loop.run(experiment, tmp_path / "serial", make_engine=with_absent(missed, "away"))
    for record, expected in zip(numbers(finished), numbers(straight), strict=True):
        del record["failed"], expected["failed"]
        assert record == expected
    assert newest_states(folder) == states(straight)


@pytest.mark.faults
def test_a_federation_in_which_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two(), 'app="nowhere:app"')
    with up(folder) as process:
        pass
    assert process.returncode == 1
    words = said(process)
    assert "error: round 1: all 2 participants failed" in words
    assert "the client's app cannot be used" in words
    assert "Traceback" not in words
