"""Runs commands at the same instant, in children of a process that has imported everything once.

That process must never train itself: what has used torch's autograd cannot be forked.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

from fedgh import cli
from fedgh.data.sources import SOURCES, DataLocation


@dataclass(frozen=True)
class Start:
    """A command on its mark."""

    words: tuple[str, ...]  # what follows `fedgh`
    after: float = 0.0  # seconds between the signal and its start
    killed: float | None = None  # seconds between the signal and its death


@dataclass(frozen=True)
class Finish:
    """How a command has ended."""

    code: int  # negative: the signal that killed it
    words: str  # what it has said


class Racers:
    """The process, as a test sees it."""

    def __enter__(self) -> "Racers":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.racers"],
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

    def race(self, place: Path, *starts: Start) -> list[Finish]:
        """Have children run these commands in a folder, and wait for all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"place": str(place), "starts": [asdict(start) for start in starts]}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return [Finish(**fields) for fields in json.loads(self._process.stdout.readline())]


def main() -> None:
    """Answer one request after the other."""
    import torch._dynamo  # noqa: F401 - the first optimizer imports it

    import fedgh.report.terminal
    import fedgh.report.write
    import fedgh.studies.statistics
    import fedgh.studies.sweep  # noqa: F401 - with all that commands import when they need it
    import tests.support.tiny  # noqa: F401

    SOURCES["digits"](DataLocation())
    sys.modules["altair"] = None  # type: ignore[assignment] # a page takes longer than a run
    for line in sys.stdin:
        request = json.loads(line)
        starts = [Start(**fields) for fields in request["starts"]]
        print(json.dumps(_race(request["place"], starts)), flush=True)
    os._exit(0)  # there is nothing to tidy up, which would take a second


def _race(place: str, starts: list[Start]) -> list[dict[str, Any]]:
    gate, signal_ = os.pipe()
    with ExitStack() as stack:
        outputs = [stack.enter_context(TemporaryFile()) for _ in starts]
        children = []
        for start, output in zip(starts, outputs, strict=True):
            child = os.fork()
            if child == 0:
                os.close(signal_)
                _be_child(place, start, gate, output)
            children.append(child)
        os.close(gate)
        os.close(signal_)  # the last of those who could write: whoever reads goes on
        _kill(children, starts)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return [
            {"code": code, "words": _all_of(output)}
            for code, output in zip(codes, outputs, strict=True)
        ]


def _kill(children: list[int], starts: list[Start]) -> None:
    begun = time.monotonic()
    for child, start in zip(children, starts, strict=True):
        if start.killed is not None:
            time.sleep(max(0.0, begun + start.killed - time.monotonic()))
            os.kill(child, signal.SIGKILL)


def _be_child(place: str, start: Start, gate: int, output: IO[bytes]) -> None:
    """Wait for the signal and run the command."""
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(output.fileno(), sys.stderr.fileno())
    os.chdir(place)
    sys.argv = ["fedgh", *start.words]
    code = 0
    os.read(gate, 1)
    time.sleep(start.after)
    try:
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # a defect: the test shows it
        sys.excepthook(*sys.exc_info())
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _all_of(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode()


if __name__ == "__main__":
    main()
