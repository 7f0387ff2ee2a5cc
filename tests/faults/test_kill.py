"""A process that is killed at any write and started again gives the same result."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.cases import Case, NewWorkdir, some_or_all
from tests.faults.disk import Fault, Operation
from tests.faults.end import end

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]


@some_or_all
@pytest.mark.parametrize(
    "case",
    [
        *("run", "rare", "participant"),
        pytest.param("federation", marks=pytest.mark.faults),  # its start takes seconds
    ],
    indirect=True,
)
def test_a_process_killed_at_any_write_resumes_with_the_same_result(
    case: Case, stride: int, new_workdir: NewWorkdir
) -> None:
    for fault in faults(case.operations)[::stride]:
        workdir = new_workdir()
        assert case.play(workdir, fault).code == -9, fault
        again = case.play(workdir)
        assert again.code == 0, (fault, again.output)
        assert "Traceback" not in again.output
        assert end(workdir) == case.end, fault
        shutil.rmtree(workdir)


def faults(operations: list[Operation]) -> list[Fault]:
    """Return a kill before every operation, and one in the middle of every write."""
    numbered = list(enumerate(operations, 1))
    before = [Fault(number, "kill") for number, _ in numbered]
    during = [Fault(number, "half") for number, op in numbered if op.kind == "write"]
    return sorted(before + during, key=lambda fault: fault.at)


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_recorded_operations_are_those_that_strace_reports(
    tmp_path: Path, case: Case, new_workdir: NewWorkdir
) -> None:
    workdir, log = new_workdir(), tmp_path / "log"
    calls = "openat,write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,unlink,"
    calls += "unlinkat,mkdir,mkdirat,rmdir,truncate,ftruncate,link,symlink,sendfile,fallocate"
    code = (
        "from pathlib import Path; from tests.faults.scenarios import training_run;"
        f"training_run([])(Path({str(workdir)!r}))"
    )
    subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", f"trace={calls}", sys.executable, "-c", code],
        check=True,
    )
    kernel = [kind for line in log.read_text().splitlines() if (kind := _kind(line, workdir))]
    assert kernel == [operation.kind for operation in case.operations]


def _kind(line: str, workdir: Path) -> str | None:
    """Return the kind of operation in a line of strace, or None if it is not on the folder."""
    call = line.split(maxsplit=1)[1].partition("(")[0]
    if str(workdir) not in line or (call == "openat" and "O_CREAT" not in line):
        return None
    kinds = {"openat": "open", "renameat": "rename", "renameat2": "rename"}
    return kinds.get(call, call)
