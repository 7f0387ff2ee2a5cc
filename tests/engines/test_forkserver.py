import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the helper is no fork")

PROGRAM = """
import time
from multiprocessing import forkserver

def main():
    {before}
    an_open_file = open(__file__)
    from fedgh.engines.forkserver import start_early
    start_early()
    from fedgh.engines.workers import worker_context
    context = worker_context()
    reader, writer = context.Pipe()
    context.Process(target=writer.send, args=("answer",), daemon=True).start()
    print(forkserver._forkserver._forkserver_pid, reader.recv(), flush=True)
    time.sleep(60)

if __name__ == "__main__":
    main()
"""


def started(program: Path, before: str = "pass") -> tuple[subprocess.Popen[str], int]:
    """Return a process with workers, and the process id of its helper."""
    program.write_text(PROGRAM.format(before=before))
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    helper, answer = process.stdout.readline().split()
    assert answer == "answer"
    return process, int(helper)


def command(pid: int) -> bytes:
    """Return the command line of a process; it is empty once the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_the_helper_is_a_fork_of_a_program_that_has_no_threads_yet(tmp_path: Path) -> None:
    process, helper = started(tmp_path / "program.py")
    try:
        assert command(helper) == command(process.pid)
        files = [path.readlink() for path in Path(f"/proc/{helper}/fd").iterdir()]
        assert tmp_path / "program.py" not in files
    finally:
        process.kill()
        process.wait()


def test_the_helper_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    process, helper = started(tmp_path / "program.py")
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while command(helper):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_error_of_the_helper_is_printed() -> None:
    """Otherwise a pipe that has ended would be all that the user sees."""
    program = (
        "import os\n"
        "from fedgh.engines.forkserver import _fork\n"
        "helper = _fork(b'', ['python', '-c', 'raise ValueError(3)'], [])\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "1\n"
    assert done.stderr.endswith("ValueError: 3\n")


def test_a_program_that_has_used_torch_gets_a_new_process(tmp_path: Path) -> None:
    process, helper = started(tmp_path / "program.py", before="import torch")
    try:
        assert command(helper) != command(process.pid)
    finally:
        process.kill()
        process.wait()
