"""Run scenarios in child processes, forked from one that has imported everything once.

Faults affect only the child. The parent must never train: a process that has used torch's autograd
cannot be forked.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from fedgh.cli import errors_as_messages
from tests.faults.disk import Disk, Fault, Operation
from tests.faults.scenarios import SCENARIOS, Act


@dataclass(frozen=True)
class Outcome:
    """The result of a child process."""

    code: int  # negative: the signal that killed it
    output: str
    operations: list[Operation]  # its changes of files; empty if it was killed


class Driver:
    """The parent process, controlled through its standard input."""

    def __enter__(self) -> "Driver":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # the process ends when its input is closed

    def play(
        self,
        workdir: Path,
        fault: Fault | None = None,
        *,
        scenario: str = "run",
        settings: tuple[str, ...] = (),
        user: int | None = None,
    ) -> Outcome:
        """Run a scenario in a folder in a child process, as `user` if given."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "scenario": scenario,
            "settings": settings,
            "workdir": str(workdir),
            "fault": None if fault is None else asdict(fault),
            "user": user,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        operations = [Operation(**fields) for fields in answer.pop("operations")]
        return Outcome(**answer, operations=operations)


def main() -> None:
    """Answer one request after the other."""
    import torch._dynamo  # noqa: F401 - the first optimizer imports it

    for line in sys.stdin:
        print(json.dumps(_play(**json.loads(line))), flush=True)
    os._exit(0)  # skips the clean-up, which takes a second


def _play(
    scenario: str, settings: list[str], workdir: str, fault: dict[str, Any] | None, user: int | None
) -> dict[str, Any]:
    act = _prepared(scenario, tuple(settings))
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _be_child(act, Path(workdir), Fault(**fault) if fault else None, user, writes)
    os.close(writes)
    with os.fdopen(reads, encoding="utf-8") as pipe:
        output, _, operations = pipe.read().partition("\0")
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "output": output,
        "operations": json.loads(operations or "[]"),
    }


def _be_child(act: Act, workdir: Path, fault: Fault | None, user: int | None, pipe: int) -> None:
    """Run the scenario; write the output and the operations to the pipe."""
    os.dup2(pipe, sys.stderr.fileno())
    os.dup2(pipe, sys.stdout.fileno())
    code = 0
    if user is not None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    disk = Disk(workdir, fault)
    disk.install()
    try:
        with errors_as_messages():
            act(workdir)
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # an error that fedgh does not handle: the test shows it
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    operations = json.dumps([asdict(operation) for operation in disk.operations])
    with os.fdopen(pipe, "w", encoding="utf-8") as out:
        out.write(f"\0{operations}")
    os._exit(code)


@lru_cache
def _prepared(scenario: str, settings: tuple[str, ...]) -> Act:
    return SCENARIOS[scenario](list(settings))


if __name__ == "__main__":
    main()
