"""Damaged files: a run refuses them, or gives the right result; never a wrong one."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fedgh.errors import RunError
from fedgh.runs.folder import RunFolder
from tests.faults.cases import Case, NewWorkdir, some_or_all
from tests.faults.end import end
from tests.support.states import client_states

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]


def damages(content: bytes, older: bytes | None) -> Iterator[bytes]:
    """Yield damaged versions of a file: with a flipped bit, cut off, empty, an older version."""
    for index in range(0, len(content), max(1, len(content) // 12)):
        flipped = bytes([content[index] ^ 1])
        yield content[:index] + flipped + content[index + 1 :]
    yield content[: len(content) // 2]
    yield content[:-1]
    yield b""
    if older is not None:
        yield older


@pytest.mark.parametrize("rounds", [2, 3])
@some_or_all
def test_a_damaged_file_is_refused_or_does_not_change_the_result(
    rounds: int, stride: int, case: Case, new_workdir: NewWorkdir
) -> None:
    older, whole = new_workdir(), new_workdir()
    case.play(older, case.killed_after_commit(rounds - 1))
    case.play(whole, None if rounds == 3 else case.killed_after_commit(rounds))
    damaged_files = [
        (path.relative_to(whole), damaged)
        for path in sorted(whole.rglob("*"))
        if path.is_file() and path.name != ".lock"
        for damaged in damages(path.read_bytes(), earlier_content(path, whole, older))
        if damaged != path.read_bytes()
    ]
    refused = 0
    for name, damaged in damaged_files[::stride]:
        workdir = new_workdir() / "copy"
        shutil.copytree(whole, workdir)
        (workdir / name).write_bytes(damaged)
        outcome = case.play(workdir)
        if outcome.code != 0:
            refused += 1
            assert "Traceback" not in outcome.output
            assert str(workdir) in outcome.output
            assert len(outcome.output.splitlines()) == 1
            shutil.copy(whole / name, workdir / name)  # with the file restored, the run must finish
            outcome = case.play(workdir)
        elif is_state(name) and (workdir / name).exists():  # the run did not need to read the file
            assert_refused_or_same(workdir, name, whole)
            shutil.copy(whole / name, workdir / name)
        assert outcome.code == 0, (name, outcome.output)
        assert end(workdir) == case.end, name
        shutil.rmtree(workdir)
    assert refused


def is_state(name: Path) -> bool:
    return name.parent.name == "means" or name.suffix == ".states"


def assert_refused_or_same(workdir: Path, name: Path, whole: Path) -> None:
    """Read class means or the states of clients as a report does; superseded states may differ."""
    if name.parent.name == "means":
        with pytest.raises(RunError, match=name.name):
            RunFolder(workdir / "run").means()
        return
    found: object = None
    with suppress(RunError):
        found = client_states(workdir / "run" / "checkpoint")
    assert found in (None, client_states(whole / "run" / "checkpoint"))


def earlier_content(path: Path, whole: Path, older: Path) -> bytes | None:
    """Return a file's content of the round before; the clients' states have another name there."""
    name = path.relative_to(whole)
    if path.suffix == ".states":
        earlier = sorted((older / name.parent).glob("*.states"))
        return earlier[-1].read_bytes() if earlier else None
    return (older / name).read_bytes() if (older / name).exists() else None
