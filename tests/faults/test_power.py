"""A power cut loses what was not synced; nothing that counts is ever lost with it."""

import shutil

import pytest

from tests.faults import volatile
from tests.faults.cases import Case, NewWorkdir, some_or_all
from tests.faults.end import end
from tests.faults.volatile import NAMES, Volatile

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]


@some_or_all
@pytest.mark.parametrize("case", ["run", "rare"], indirect=True)
def test_a_power_cut_at_any_write_changes_nothing(
    case: Case, stride: int, new_workdir: NewWorkdir
) -> None:
    disk = Volatile()
    seen: list[dict[str, str | None]] = []
    for operation in case.operations:
        disk.do(operation)
        for names in NAMES:
            for bytes_too in (False, True):
                left = disk.left(names, bytes_too)
                if left not in seen:
                    seen.append(left)
    for left in seen[::stride]:
        workdir = new_workdir()
        volatile.write(left, workdir)
        again = case.play(workdir)
        assert again.code == 0, (left.keys(), again.words)
        assert end(workdir) == case.end, left.keys()
        shutil.rmtree(workdir)


@pytest.mark.parametrize("case", ["run", "rare", "participant"], indirect=True)
def test_what_a_commit_relies_on_is_synced_before_it(case: Case) -> None:
    disk = Volatile()
    commits = 0
    for operation in case.operations:
        if operation.kind == "rename":
            assert disk.is_sure(operation.path), f"{operation.other} may be empty"
        if operation.kind == "rename" and operation.other.endswith("server.safetensors"):
            commits += 1
            folder = operation.path.rpartition("/")[0]
            unsure = [name for change in disk.unsure_names(folder) for name in change]
            assert unsure == [operation.path], "only its own temporary name"
            assert commits == 1 or disk.is_sure("run/rounds.jsonl")
        if operation.kind == "unlink" and operation.path.endswith(".safetensors"):
            folder = operation.path.rpartition("/")[0]
            for change in disk.unsure_names(folder):
                assert not any(name.endswith("server.safetensors") for name in change)
        disk.do(operation)
    assert commits == {"run": 4, "rare": 3, "participant": 0}[case.name]
    for folder in {operation.path.rpartition("/")[0] for operation in case.operations}:
        for change in disk.unsure_names(folder):
            assert not any(change.values()), "at the end nothing that is there may be lost"
