"""A power cut loses data that were not synced; a committed round is never lost."""

import shutil

import pytest

from tests.faults import volatile
from tests.faults.cases import Case, NewWorkdir, some_or_all
from tests.faults.end import end
from tests.faults.volatile import NAMES, Volatile

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]


@some_or_all
@pytest.mark.parametrize("case", ["run", "rare"], indirect=True)
def test_a_run_resumes_with_the_same_result_after_a_power_cut_at_any_write(
    case: Case, stride: int, new_workdir: NewWorkdir
) -> None:
    disk = Volatile()
    outcomes: list[dict[str, str | None]] = []
    for operation in case.operations:
        disk.do(operation)
        for names in NAMES:
            for keep_bytes in (False, True):
                remains = disk.after_power_cut(names, keep_bytes)
                if remains not in outcomes:
                    outcomes.append(remains)
    for remains in outcomes[::stride]:
        workdir = new_workdir()
        volatile.write(remains, workdir)
        again = case.play(workdir)
        assert again.code == 0, (remains.keys(), again.output)
        assert end(workdir) == case.end, remains.keys()
        shutil.rmtree(workdir)


@pytest.mark.parametrize("case", ["run", "rare", "participant"], indirect=True)
def test_all_files_of_a_commit_are_synced_before_it(case: Case) -> None:
    disk = Volatile()
    commits = 0
    for operation in case.operations:
        if operation.kind == "rename":
            assert disk.is_durable(operation.path), f"{operation.other} may be empty"
        if operation.kind == "rename" and operation.other.endswith("server.safetensors"):
            commits += 1
            folder = operation.path.rpartition("/")[0]
            volatile_names = [name for change in disk.volatile_changes(folder) for name in change]
            assert volatile_names == [operation.path], "only its own temporary name"
            assert commits == 1 or disk.is_durable("run/rounds.jsonl")
        if operation.kind == "unlink" and operation.path.endswith((".safetensors", ".states")):
            folder = operation.path.rpartition("/")[0]
            for change in disk.volatile_changes(folder):
                assert not any(name.endswith("server.safetensors") for name in change)
        disk.do(operation)
    assert commits == {"run": 4, "rare": 3, "participant": 0}[case.name]
    for folder in {operation.path.rpartition("/")[0] for operation in case.operations}:
        for change in disk.volatile_changes(folder):
            assert not any(change.values()), "at the end every existing file is durable"
