"""Failures in a federation of real processes: training continues, or ends with a clear error."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgh.flower.current import CurrentRound, read_current
from fedgh.flower.deployment import deployed, follow, free_ports
from fedgh.flower.folder import FederationFolder
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.absent import with_absent
from tests.flower.real import federation, running_processes_of, two, wait_until
from tests.support.states import client_states, states
from tests.support.tiny import numbers, quick

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("deployment"),  # two federations at a time miss deadlines
]

FEDGH = [sys.executable, "-m", "fedgh"]


def rounds(folder: FederationFolder) -> int:
    return len(RunFolder(folder.path / "run").records())


def registered_processes(folder: FederationFolder) -> dict[str, list[int]]:
    result: dict[str, list[int]] = json.loads(folder.processes.read_text())["processes"]
    return result


def pid_of(folder: FederationFolder, name: str) -> int:
    return registered_processes(folder)[name][0]


def fedgh(*arguments: str) -> str:
    done = subprocess.run(
        [*FEDGH, *arguments], capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout


def newest_states(folder: FederationFolder) -> dict[str, bytes]:
    run = RunFolder(folder.path / "run")
    result = {"server.safetensors": states(run)["server.safetensors"]}
    for own in folder.participants.iterdir():
        (home,) = (own / "states").glob("experiments/*/client-*")
        result |= client_states(home)
    return result


def assert_same(folder: FederationFolder, straight: RunFolder) -> None:
    assert numbers(RunFolder(folder.path / "run")) == numbers(straight)
    assert newest_states(folder) == states(straight)


@contextmanager
def up(folder: FederationFolder, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `fedgh flower up` in a process; afterwards no process of it is left."""
    process = subprocess.Popen(
        [*FEDGH, "flower", "up", str(folder.path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
        process.wait(timeout=400)
    finally:
        process.kill()
        process.wait()
        fedgh("flower", "stop", str(folder.path))
    wait_until(lambda: not running_processes_of(folder.path), seconds=10)


def output_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


def three_rounds(folder: Path) -> tuple[FederationFolder, RunFolder]:
    """Return a federation that has not started, and the run that it must equal."""
    experiment = two("federation.rounds=3", "run.deadline=90")
    straight = loop.run(experiment, folder / "serial")
    return federation(folder / "federation", experiment), straight


def assert_stopped_cleanly(process: subprocess.Popen[str], folder: FederationFolder) -> None:
    assert process.returncode == 130
    output = output_of(process)
    assert "the same command resumes" in output
    assert "Traceback" not in output
    assert not folder.processes.exists()


@pytest.mark.faults
def test_training_continues_after_a_killed_superlink_without_losing_a_round(tmp_path: Path) -> None:
    folder, straight = three_rounds(tmp_path)
    with up(folder) as process:
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(3)  # into the next round
        os.kill(pid_of(folder, "superlink"), signal.SIGKILL)
    assert process.returncode == 1
    assert "the superlink has ended (exit code -9)" in output_of(process)
    assert not folder.processes.exists()
    done = rounds(folder)
    assert 1 <= done < 3

    with up(folder) as process:
        pass
    assert process.returncode == 0, output_of(process)
    assert f"rounds 1 to {done} are already done" in output_of(process)
    assert_same(folder, straight)


@pytest.mark.faults
def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two())
    with up(folder) as process:
        wait_until(lambda: folder.processes.exists() and len(registered_processes(folder)) == 4)
        process.send_signal(signal.SIGINT)
    assert_stopped_cleanly(process, folder)


@pytest.mark.faults
def test_a_run_continues_after_ctrl_c_and_after_kill_with_no_process_left(tmp_path: Path) -> None:
    folder, straight = three_rounds(tmp_path)
    with up(folder) as process:
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
    assert_stopped_cleanly(process, folder)
    done = rounds(folder)

    with up(folder) as process:
        wait_until(lambda: folder.processes.exists() and len(registered_processes(folder)) == 4)
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
    assert process.returncode == 0, output_of(process)
    assert "accuracy" in output_of(process)
    assert_same(folder, straight)


@pytest.mark.faults
def test_a_killed_node_fails_in_some_rounds_and_continues_from_its_state(tmp_path: Path) -> None:
    experiment = two("federation.rounds=6", "run.deadline=40")
    folder = federation(tmp_path / "federation", experiment)
    lines: list[str] = []
    with deployed(folder, 2, lines.append) as deployment:
        out = folder.path / "run"
        run = deployment.train(out)
        wait_until(lambda: rounds(folder) >= 1)
        time.sleep(2)
        os.killpg(pid_of(folder, "node-1"), signal.SIGKILL)
        finished = follow(deployment, run, out, lambda _: None)
    assert running_processes_of(folder.path) == []
    assert any("the node of client 1 has ended (exit code -9)" in line for line in lines)

    failed = [[item.client for item in r.failed] for r in finished.records()]
    missed = {(client, k + 1) for k, clients in enumerate(failed) for client in clients}
    assert missed, "it was killed during a round"
    assert {client for client, _ in missed} == {1}
    assert failed[-1] == [], "it has come back"
    late = next(r for r in finished.records() if r.failed)
    assert late.seconds["total"] < 40 + 20
    assert finished.records()[-1].accuracies[1] is not None

    # Equal to a run in which the client fails in those rounds and keeps its state.
    straight = loop.run(experiment, tmp_path / "serial", make_engine=with_absent(missed, "away"))
    for record, expected in zip(numbers(finished), numbers(straight), strict=True):
        del record["failed"], expected["failed"]
        assert record == expected
    assert newest_states(folder) == states(straight)


@pytest.mark.faults
def test_a_run_in_which_all_clients_fail_ends_with_the_reason(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two(), 'app="nowhere:app"')
    with up(folder) as process:
        pass
    assert process.returncode == 1
    output = output_of(process)
    assert "error: round 1: all 2 participants failed" in output
    assert "the client's app cannot be used" in output
    assert f"error: the logs are in {folder.logs}" in output
    assert "Traceback" not in output


def current(folder: FederationFolder) -> CurrentRound:
    run = folder.path / "run"
    found = read_current(run, RunFolder(run).run_id)
    assert found is not None
    return found


def metric(port: int, name: str) -> float | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(found[0]) if found else None


@pytest.mark.faults
def test_a_late_round_of_everybody_does_not_change_the_result(tmp_path: Path) -> None:
    experiment = two("federation.rounds=3", "run.deadline=25")
    straight = loop.run(experiment, tmp_path / "serial")
    folder = federation(tmp_path / "federation", experiment)
    with up(folder) as process:
        wait_until(lambda: rounds(folder) >= 1)
        nodes = [pid_of(folder, f"node-{client}") for client in (0, 1)]
        for node in nodes:
            os.killpg(node, signal.SIGSTOP)
        try:
            wait_until(lambda: current(folder).tries == 2)
        finally:
            for node in nodes:
                os.killpg(node, signal.SIGCONT)
    output = output_of(process)
    assert process.returncode == 0, output
    assert "(try 2 of 3)" in output
    assert all(not record.failed for record in RunFolder(folder.path / "run").records())
    assert_same(folder, straight)


def awaited(folder: FederationFolder) -> set[int]:
    """Return the clients whose answers the server awaits."""
    clients = current(folder).in_round().items()
    return {client for client, one in clients if one.state == "awaited"}


SLOW_START = """
import os, sys, time
if "fedgh.flower.executor" in sys.orig_argv and os.getcwd().endswith("participants/2"):
    time.sleep(35)  # longer than Flower waits for a process
"""


@pytest.mark.faults
def test_three_sites_of_which_one_is_killed_and_one_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = quick(
        *("federation.clients=3", "federation.participation=1", "federation.rounds=6"),
        *("data.classes_per_client=4", "run.deadline=40"),
    )
    folder = federation(tmp_path / "federation", experiment)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_START)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "slow"), prepend=os.pathsep)
    (port,) = free_ports(1)
    with up(folder, "--metrics", str(port)) as process:
        wait_until(lambda: rounds(folder) >= 1 and awaited(folder) >= {1, 2})
        os.killpg(pid_of(folder, "node-1"), signal.SIGKILL)
        slow = pid_of(folder, "node-2")
        os.killpg(slow, signal.SIGSTOP)
        disturbed = current(folder).round
        wait_until(lambda: metric(port, "fedgh_round_answered") == 1)
        found = json.loads(fedgh("flower", "status", str(folder.path), "--format", "json"))
        wait_until(lambda: rounds(folder) >= disturbed)
        os.killpg(slow, signal.SIGCONT)
        assert metric(port, "fedgh_failures_total") == 2
        assert metric(port, "fedgh_running") == 1
        wait_until(lambda: metric(port, "fedgh_clients_connected") == 3)
    output = output_of(process)
    assert process.returncode == 0, output
    assert "the node of client 1 has ended (exit code -9)" in output

    assert found["state"] == "running"
    assert set(found["processes"]) >= {"superlink", "superexec", "node-0", "node-2"}
    if found["current"] is not None:  # the round was still in progress
        assert found["current"]["round"] == disturbed
        assert set(found["current"]["awaited"]) <= {1, 2}
    assert found["clients"][0]["last_round"] == disturbed
    with pytest.raises(OSError, match="refused"):
        metric(port, "fedgh_rounds")  # the endpoint ends with the process

    records = RunFolder(folder.path / "run").records()
    missed = {(item.client, r.round) for r in records for item in r.failed}
    assert {client for client, _ in missed} == {1, 2}
    assert records[0].failed == [], "a process that starts slowly is in time"
    assert (1, disturbed) in missed
    assert (2, disturbed) in missed
    assert records[-1].failed == [], "both have come back"

    # Equal to a run in which the clients fail in those rounds and keep their states.
    straight = loop.run(experiment, tmp_path / "serial", make_engine=with_absent(missed, "away"))
    for record, expected in zip(
        numbers(RunFolder(folder.path / "run")), numbers(straight), strict=True
    ):
        del record["failed"], expected["failed"]
        assert record == expected
    assert newest_states(folder) == states(straight)
