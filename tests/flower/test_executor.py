"""Messages are handled in forks of a process that has imported everything."""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedgh.flower import command, executor
from fedgh.flower._flwr import ExecutionSpec, TaskType
from fedgh.flower.executor import ClientExecutor
from fedgh.flower.folder import TEMPLATES
from fedgh.flower.node import explanation


def spec(task: int) -> ExecutionSpec:
    return ExecutionSpec(
        task_type=TaskType.CLIENT_APP,
        runtime_api_address="127.0.0.1:1",
        token="0" * 8,
        insecure=True,
        root_certificates_path=None,
        runtime_dependency_install=False,
        parent_pid=None,
        suppress_output=False,
        task_id=task,
    )


@pytest.fixture
def handled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to which each message adds the process that handled it, and a random number."""
    file = tmp_path / "handled"

    def handle(*, runtime_api_address: str, token: str, insecure: bool, parent_pid: int) -> None:
        assert (runtime_api_address, token, insecure) == ("127.0.0.1:1", "0" * 8, True)
        with file.open("a") as out:
            out.write(f"{os.getpid()} {parent_pid} {np.random.random()}\n")
        if (tmp_path / "hang").exists():
            time.sleep(100)

    monkeypatch.setattr(executor, "run_clientapp", handle)
    return file


def lines(file: Path, count: int) -> list[list[str]]:
    for _ in range(1_000):
        found = file.read_text().splitlines() if file.exists() else []
        if len(found) >= count:
            return [line.split() for line in found]
        time.sleep(0.01)
    raise AssertionError(found)


def test_every_message_has_a_process_of_its_own(
    handled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started = ClientExecutor(fork=True)
    for task in (1, 2):
        started.launch(spec(task))
        lines(handled, task)
    started.close()
    (one, parent, first), (other, _, second) = lines(handled, 2)
    assert one != other
    assert int(parent) == os.getpid()
    assert first != second, "the client's code does not draw the same numbers again"
    assert caplog.records == []


def test_a_message_that_is_started_again_is_explained_and_its_old_process_ends(
    handled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hang").touch()
    started = ClientExecutor(fork=True)
    started.launch(spec(1))
    ((old, *_),) = lines(handled, 1)
    with caplog.at_level(logging.WARNING):
        started.launch(spec(1))
    (message,) = caplog.messages
    assert message.startswith("start 2 of the process for this message")
    assert "has not reported within 30 s" in message
    assert "end other programs" in message
    (new, *_) = lines(handled, 2)[1]
    assert not Path(f"/proc/{old}").exists()
    assert Path(f"/proc/{new}").exists()
    started.close()
    assert not Path(f"/proc/{new}").exists()


def test_a_process_that_was_killed_is_explained(
    handled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hang").touch()
    started = ClientExecutor(fork=True)
    started.launch(spec(1))
    ((killed, *_),) = lines(handled, 1)
    os.kill(int(killed), signal.SIGKILL)
    while Path(f"/proc/{killed}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
        time.sleep(0.01)
    with caplog.at_level(logging.WARNING):
        started.launch(spec(2))
    (message,) = caplog.messages
    assert "was killed (signal 9), perhaps because this machine had too little memory" in message
    lines(handled, 2)
    started.close()


def test_only_client_apps_are_accepted() -> None:
    kinds, _ = ClientExecutor(fork=True).get_eligible_capacity(set(TaskType))
    assert kinds == {TaskType.CLIENT_APP}


def test_the_process_ends_with_the_supernode() -> None:
    """Also while it imports: no thread is needed, which would not survive a fork."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def node() -> None:
        child = multiprocessing.get_context("fork").Process(target=run)
        child.start()
        writer.send(child.pid)
        time.sleep(0.5)
        os._exit(0)

    def run() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        executor._end_with(os.getppid())
        time.sleep(100)

    parent = multiprocessing.get_context("fork").Process(target=node)
    parent.start()
    pid = reader.recv()
    parent.join()
    for _ in range(1_000):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.01)
    raise AssertionError("it still runs")


def test_a_supernode_does_not_stay_without_its_executor() -> None:
    """It would be connected, accept every message, and answer none."""
    program = (
        "import os, signal, subprocess, time\n"
        "from threading import Thread\n"
        "from fedgh.flower import command, logs\n"
        "logs.configure(printed=False)\n"
        "command.ENDS_TOO = 0.1\n"
        "executor = subprocess.Popen(['sleep', '100'])\n"
        "Thread(target=command._end_without, args=[executor.pid], daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "executor.kill()\n"
        "time.sleep(100)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert "the executor of this node has ended (exit code -9)" in done.stdout
    assert "too little memory" in (explanation(done.stdout) or "")


def test_the_start_script_tells_the_supernode_its_executor() -> None:
    script = (TEMPLATES / "node.sh").read_text("utf-8")
    assert f"export {command.EXECUTOR}=$!\nexec " in script


def test_a_supernode_that_gives_up_ends() -> None:
    """Flower's function returns after an error of TLS, but a thread of it would go on for ever."""
    program = (
        "import sys, threading, time\n"
        "from types import SimpleNamespace\n"
        "from fedgh.flower import command\n"
        "def supernode():\n"
        "    threading.Thread(target=time.sleep, args=[100]).start()\n"
        "entry = SimpleNamespace(name='flower-supernode', load=lambda: supernode)\n"
        "points = SimpleNamespace(select=lambda **_: [entry])\n"
        "command.distribution = lambda _: SimpleNamespace(entry_points=points)\n"
        "sys.argv = ['command', 'flower-supernode']\n"
        "command.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert "Join again" in (explanation(done.stdout) or "")
