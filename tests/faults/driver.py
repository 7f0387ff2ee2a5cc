"""Plays scenarios in children of a process that has imported everything once.

A child is killed, or finds the disk full; the process that started it goes on. It must never train
itself: what has used torch's autograd cannot be forked.
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
    """How a child has ended."""

    code: int  # negative: the signal that killed it
    words: str  # what it has said
    operations: list[Operation]  # what it has done, if it lived to tell


class Driver:
    """The process, as a test sees it."""

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
        self._process.communicate()  # it ends with its input

    def play(
        self,
        workdir: Path,
        fault: Fault | None = None,
        *,
        scenario: str = "run",
        settings: tuple[str, ...] = (),
        user: int | None = None,
    ) -> Outcome:
        """Have a child do its work in a folder, as another user perhaps."""
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
    os._exit(0)  # there is nothing to tidy up, which would take a second


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
        words, _, operations = pipe.read().partition("\0")
    _, status = os.waitpid(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "words": words,
        "operations": json.loads(operations or "[]"),
    }


def _be_child(act: Act, workdir: Path, fault: Fault | None, user: int | None, pipe: int) -> None:
    """Do the work; what is said and what was done goes into the pipe."""
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
    except BaseException:  # a defect: the test shows it
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    done = json.dumps([asdict(operation) for operation in disk.operations])
    with os.fdopen(pipe, "w", encoding="utf-8") as out:
        out.write(f"\0{done}")
    os._exit(code)


@lru_cache
def _prepared(scenario: str, settings: tuple[str, ...]) -> Act:
    return SCENARIOS[scenario](list(settings))


if __name__ == "__main__":
    main()
