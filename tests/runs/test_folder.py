"""The run folder after interrupted rounds, with damaged files and with files of other runs."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import write_atomic
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.folder import RunFolder
from tests.support.records import a_round
from tests.support.tiny import a_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return create(tmp_path / "run")


def create(path: Path) -> RunFolder:
    return a_run(path, state=state(0))


def state(round: int) -> Payload:
    """Return a server state in which client 0 has trained in every round and client 1 never."""
    return {"s": torch.tensor(round), "trained": torch.tensor([round, 0])}


def complete_round(run: RunFolder, files: ClientFiles, round: int) -> None:
    files.write(round, 0, {"w": torch.full((2,), float(round))})
    files.seal(round)
    run.append(a_round(round))
    run.commit(round, state(round))


def test_an_existing_run_is_not_overwritten(run: RunFolder) -> None:
    with pytest.raises(RunError, match="fedgh resume"):
        create(run.path)


def test_the_lock_is_exclusive_until_it_is_released(run: RunFolder) -> None:
    with run.locked(), pytest.raises(RunError, match="in use"), run.locked():
        pass
    with run.locked():
        pass


def test_a_folder_without_a_configuration_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_a_new_run_is_committed_at_round_0(run: RunFolder) -> None:
    round, server_state = run.rewind()
    assert round == 0
    assert_close(server_state, state(0))


def test_an_interrupted_creation_can_be_repeated(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    run.config.unlink()  # the file that is written last
    assert create(tmp_path / "run").rewind()[0] == 0


def test_rewind_drops_an_unfinished_round(run: RunFolder) -> None:
    files = run.client_files(0)
    complete_round(run, files, 1)
    complete_round(run, files, 2)
    # Round 3 was interrupted after its client files and half of its record.
    files.write(3, 0, {"w": torch.zeros(2)})
    files.write(3, 1, {"w": torch.zeros(2)})
    files.seal(3)
    (run.checkpoint / "server.safetensors.0123456789abcdef.part").write_bytes(b"half")
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    round, server_state = run.rewind()
    assert round == 2
    assert_close(server_state, state(2))
    assert [record.round for record in run.records()] == [1, 2]
    assert sorted(p.name for p in run.checkpoint.iterdir()) == [
        "clients-000002.round-000002.states",
        "server.safetensors",
    ]
    restored = run.client_files(2).load(0)
    assert restored is not None
    assert_close(restored["w"], torch.full((2,), 2.0))
    assert run.client_files(2).load(1) is None


def test_a_state_written_before_its_checkpoint_replaces_nothing_until_the_commit(
    run: RunFolder,
) -> None:
    def stored_rounds() -> list[str]:
        return sorted(p.name[15:27] for p in run.checkpoint.glob("clients-*.states"))

    files = run.client_files(0)
    complete_round(run, files, 1)
    for round in (2, 3):  # as if memory was short before the next checkpoint
        files.write(round, 0, {"w": torch.full((2,), float(round))})
        assert files.load(0)["w"][0] == round  # type: ignore[index]
    assert stored_rounds() == ["round-000001"]
    assert run.client_files(1).load(0)["w"][0] == 1  # type: ignore[index]
    files.seal(4)
    assert stored_rounds() == ["round-000001", "round-000004"]  # round 4 is not committed yet
    for round in (2, 3, 4):
        run.append(a_round(round))
    run.commit(4, {"s": torch.tensor(4), "trained": torch.tensor([3, 0])})
    files.delete_superseded()
    assert stored_rounds() == ["round-000004"]
    assert run.rewind()[0] == 4
    assert run.client_files(4).round(0) == 3
    assert run.client_files(4).load(0)["w"][0] == 3  # type: ignore[index]


def test_rewind_drops_a_record_that_was_not_committed(run: RunFolder) -> None:
    complete_round(run, run.client_files(0), 1)
    run.append(a_round(2))
    assert run.rewind()[0] == 1
    assert [record.round for record in run.records()] == [1]


def check_resumable(run: RunFolder) -> None:
    """Do what `resume` does before it trains."""
    round, server_state = run.rewind()
    run.client_files(round).check(server_state["trained"].tolist())


@pytest.mark.parametrize("text", ['{"round": 7}', "null", "{}", "[1]", "\xff", ""])
def test_a_damaged_record_of_a_committed_round_is_refused(run: RunFolder, text: str) -> None:
    complete_round(run, run.client_files(0), 1)
    (run.path / "rounds.jsonl").write_text(text + "\n")
    with pytest.raises(RunError, match="rounds 1 to 1"):
        run.rewind()


def test_a_changed_record_is_refused_by_every_reader_once_it_is_committed(run: RunFolder) -> None:
    files = run.client_files(0)
    complete_round(run, files, 1)
    run.append(a_round(2, accuracy=0.5))
    path = run.path / "rounds.jsonl"
    path.write_text(path.read_text().replace("0.5", "0.6"))  # it is not committed yet
    assert run.records()[1].accuracy == 0.6
    run = RunFolder.open(run.path)
    run.rewind()
    run.append(a_round(2, accuracy=0.5))
    run.commit(2, state(2))
    path.write_text(path.read_text().replace("0.5", "0.6"))
    for read in (run.records, run.committed, run.rewind):
        with pytest.raises(RunError, match="other records of rounds 1 to 2 than were committed"):
            read()


def test_a_state_without_its_digest_is_refused(run: RunFolder) -> None:
    complete_round(run, run.client_files(0), 1)
    server = run.checkpoint / "server.safetensors"
    save_file(load_file(server), server, {"round": "1"})
    with pytest.raises(RunError, match="its digest is missing"):
        check_resumable(run)


def test_a_state_of_another_run_is_refused(run: RunFolder, tmp_path: Path) -> None:
    other = create(tmp_path / "other")
    for each in (run, other):
        complete_round(each, each.client_files(0), 1)
    for path in run.checkpoint.iterdir():
        original = path.read_bytes()
        path.write_bytes((other.checkpoint / path.name).read_bytes())
        with pytest.raises(RunError, match=f"{path.name}.*another.* run"):
            check_resumable(run)
        path.write_bytes(original)
    run.count_requests([0, 1])
    other.count_requests([1])
    (run.path / "asked.json").write_bytes((other.path / "asked.json").read_bytes())
    with pytest.raises(RunError, match="belongs to another run"):
        run.request_counts()


def test_a_segment_under_the_name_of_another_round_is_refused(run: RunFolder) -> None:
    complete_round(run, run.client_files(0), 1)
    other = "clients-000001.round-000002.states"
    (run.checkpoint / "clients-000001.round-000001.states").rename(run.checkpoint / other)
    with pytest.raises(RunError, match=f"{other}.*another run or round"):
        run.client_files(2)


def test_changed_class_means_are_refused(run: RunFolder) -> None:
    run.keep_means(1, {"means": torch.ones(2, 3)})
    assert_close(run.means()[1]["means"], torch.ones(2, 3))
    (path,) = (run.path / "means").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="000001"):
        run.means()


def test_rewind_removes_partly_written_files_of_a_killed_process(run: RunFolder) -> None:
    run.keep_means(1, {"means": torch.ones(2, 3)})
    complete_round(run, run.client_files(0), 1)
    for folder in (run.path, run.checkpoint, run.path / "means"):
        (folder / "summary.json.0123456789abcdef.part").write_bytes(b"half")
    (run.path / "mine.part").write_text("a file of the user")
    of_audit = run.path / "audit.json.0123456789abcdef.part"
    of_audit.write_text("an audit that is still running takes no lock")
    run.rewind()
    assert {path.name for path in run.path.rglob("*.part")} == {"mine.part", of_audit.name}


@pytest.mark.parametrize("content", [None, b"", b"\x08broken", b"x" * 100])
@pytest.mark.parametrize("name", ["server.safetensors", "clients-000001.round-000001.states"])
def test_a_missing_or_damaged_state_is_refused(
    run: RunFolder, name: str, content: bytes | None
) -> None:
    complete_round(run, run.client_files(0), 1)
    path = run.checkpoint / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match="cannot be resumed"):
        check_resumable(run)
    assert (run.path / "rounds.jsonl").read_text().count("\n") == 1  # no record was deleted


def test_a_truncated_state_is_refused(run: RunFolder) -> None:
    complete_round(run, run.client_files(0), 1)
    path = run.checkpoint / "clients-000001.round-000001.states"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunError, match="clients-000001"):
        check_resumable(run)


def test_rewind_keeps_files_that_fedgh_did_not_write(run: RunFolder) -> None:
    (run.checkpoint / "notes.txt").write_text("mine")
    (run.checkpoint / "folder").mkdir()
    run.rewind()
    assert (run.checkpoint / "notes.txt").exists()


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
