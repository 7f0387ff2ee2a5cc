"""Killed at any write, a process that is started again ends as if it never had been."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.disk import Fault, Operation
from tests.faults.driver import Driver
from tests.faults.end import end

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

NO_MEMORY = ("run.checkpoint_every=2", "run.memory=0.000000001")  # states are written early

CASES = {
    "run": ("run", ()),
    "run, rare checkpoints": ("run", NO_MEMORY),
    "participant": ("participant", ()),
    "federation": ("federation", ("federation.rounds=2",)),
}
some_or_all = pytest.mark.parametrize(
    "stride", [pytest.param(19, id="some"), pytest.param(1, id="all", marks=pytest.mark.faults)]
)
NewPlace = Callable[[], Path]


@some_or_all
@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_any_write_changes_nothing(
    case: str, stride: int, driver: Driver, new_place: NewPlace
) -> None:
    scenario, settings = CASES[case]
    place = new_place()
    straight = driver.play(place, scenario=scenario, settings=settings)
    assert straight.code == 0, straight.words
    expected = end(place)
    assert_seen(straight.operations, place)
    for fault in faults(straight.operations)[::stride]:
        place = new_place()
        assert driver.play(place, fault, scenario=scenario, settings=settings).code == -9, fault
        again = driver.play(place, scenario=scenario, settings=settings)
        assert (again.code, again.words.count("Traceback")) == (0, 0), (fault, again.words)
        assert end(place) == expected, fault
        shutil.rmtree(place)


def faults(operations: list[Operation]) -> list[Fault]:
    """Death before every operation, and in the middle of every write."""
    numbered = list(enumerate(operations, 1))
    before = [Fault(number, "kill") for number, _ in numbered]
    within = [Fault(number, "half") for number, op in numbered if op.kind == "write"]
    return sorted(before + within, key=lambda fault: fault.at)


def assert_seen(operations: list[Operation], place: Path) -> None:
    """Every file that is there was opened or renamed before our eyes."""
    made = {op.path for op in operations if op.kind == "open"}
    made |= {op.other for op in operations if op.kind == "rename"}
    there = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    assert there <= made


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_the_kernel_sees_no_other_writes_than_we_do(
    tmp_path: Path, driver: Driver, new_place: NewPlace
) -> None:
    place, log = new_place(), tmp_path / "log"
    calls = "openat,write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,unlink,"
    calls += "unlinkat,mkdir,mkdirat,rmdir,truncate,ftruncate,link,symlink,sendfile,fallocate"
    code = (
        "from pathlib import Path; from tests.faults.scenarios import training_run;"
        f"training_run([])(Path({str(place)!r}))"
    )
    subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", f"trace={calls}", sys.executable, "-c", code],
        check=True,
    )
    kernel = [kind for line in log.read_text().splitlines() if (kind := _kind(line, place))]
    ours = driver.play(new_place()).operations
    assert kernel == [op.kind for op in ours]


def _kind(line: str, place: Path) -> str | None:
    """What a line of strace says was done to the folder, in our words."""
    call = line.split(maxsplit=1)[1].partition("(")[0]
    if str(place) not in line or (call == "openat" and "O_CREAT" not in line):
        return None
    same = {"openat": "open", "renameat": "rename", "renameat2": "rename"}
    return same.get(call, call)
