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
    """As if client 0 had trained in every round and client 1 never."""
    return {"s": torch.tensor(round), "trained": torch.tensor([round, 0])}


def play(run: RunFolder, files: ClientFiles, round: int) -> None:
    files.write(round, 0, {"w": torch.full((2,), float(round))})
    files.seal(round)
    run.append(a_round(round))
    run.commit(round, state(round))


def test_a_folder_in_use_is_not_overwritten(run: RunFolder) -> None:
    with pytest.raises(RunError, match="fedgh resume"):
        create(run.path)


def test_only_one_process_writes(run: RunFolder) -> None:
    with run.locked(), pytest.raises(RunError, match="in use"), run.locked():
        pass
    with run.locked():
        pass


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_a_new_run_starts_at_nothing(run: RunFolder) -> None:
    round, found = run.rewind()
    assert round == 0
    assert_close(found, state(0))


def test_a_run_that_was_not_quite_created_is_created_again(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    run.config.unlink()  # the last thing that is written
    assert create(tmp_path / "run").rewind()[0] == 0


def test_an_unfinished_round_is_forgotten(run: RunFolder) -> None:
    files = run.client_files(0)
    play(run, files, 1)
    play(run, files, 2)
    # Round 3 got as far as its client files and half its line.
    files.write(3, 0, {"w": torch.zeros(2)})
    files.write(3, 1, {"w": torch.zeros(2)})
    files.seal(3)
    (run.checkpoint / "server.safetensors.0123456789abcdef.part").write_bytes(b"half")
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    round, found = run.rewind()
    assert round == 2
    assert_close(found, state(2))
    assert [record.round for record in run.records()] == [1, 2]
    assert sorted(p.name for p in run.checkpoint.iterdir()) == [
        "client-000000.round-000002.safetensors",
        "server.safetensors",
    ]
    restored = run.client_files(2).load(0)
    assert restored is not None
    assert_close(restored["w"], torch.full((2,), 2.0))
    assert run.client_files(2).load(1) is None


def test_a_state_written_before_its_checkpoint_replaces_nothing_until_the_commit(
    run: RunFolder,
) -> None:
    def there() -> list[str]:
        return sorted(p.name[14:26] for p in run.checkpoint.glob("client-*"))

    files = run.client_files(0)
    play(run, files, 1)
    for round in (2, 3):  # memory was short; no checkpoint is due yet
        files.write(round, 0, {"w": torch.full((2,), float(round))})
    assert there() == ["round-000001", "round-000003"]
    assert run.client_files(1).load(0)["w"][0] == 1  # type: ignore[index]
    files.seal(4)
    assert "round-000001" in there()  # round 4 is not committed yet
    for round in (2, 3, 4):
        run.append(a_round(round))
    run.commit(4, {"s": torch.tensor(4), "trained": torch.tensor([3, 0])})
    files.seal(5)
    assert there() == ["round-000003"]
    assert run.rewind()[0] == 4
    assert run.client_files(4).load(0)["w"][0] == 3  # type: ignore[index]


def test_a_line_that_was_written_but_not_committed_is_forgotten(run: RunFolder) -> None:
    play(run, run.client_files(0), 1)
    run.append(a_round(2))
    assert run.rewind()[0] == 1
    assert [record.round for record in run.records()] == [1]


def resumed(run: RunFolder) -> None:
    """As far as a run goes before it goes on."""
    round, found = run.rewind()
    run.client_files(round).check(found["trained"].tolist())


@pytest.mark.parametrize("text", ['{"round": 7}', "null", "{}", "[1]", "\xff", ""])
def test_a_damaged_history_is_refused(run: RunFolder, text: str) -> None:
    play(run, run.client_files(0), 1)
    (run.path / "rounds.jsonl").write_text(text + "\n")
    with pytest.raises(RunError, match="rounds 1 to 1"):
        run.rewind()


def test_a_changed_line_is_refused_by_all_who_read_it(run: RunFolder) -> None:
    files = run.client_files(0)
    play(run, files, 1)
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
        with pytest.raises(RunError, match="not what rounds 1 to 2 have written"):
            read()


def test_a_state_without_its_digest_is_refused(run: RunFolder) -> None:
    play(run, run.client_files(0), 1)
    for path in run.checkpoint.iterdir():
        whole = path.read_bytes()
        save_file(load_file(path), path, {"round": "1"})
        with pytest.raises(RunError, match="its digest is missing"):
            resumed(run)
        path.write_bytes(whole)
    resumed(run)


def test_a_state_of_another_run_is_refused(run: RunFolder, tmp_path: Path) -> None:
    other = create(tmp_path / "other")
    for each in (run, other):
        play(each, each.client_files(0), 1)
    for path in run.checkpoint.iterdir():
        mine = path.read_bytes()
        path.write_bytes((other.checkpoint / path.name).read_bytes())
        with pytest.raises(RunError, match=f"{path.name}.*another.* run"):
            resumed(run)
        path.write_bytes(mine)
    run.count_asked([0, 1])
    other.count_asked([1])
    (run.path / "asked.json").write_bytes((other.path / "asked.json").read_bytes())
    with pytest.raises(RunError, match="another run"):
        run.asked()


@pytest.mark.parametrize("other", ["client-000001.round-000001", "client-000000.round-000002"])
def test_a_state_under_another_name_is_refused(run: RunFolder, other: str) -> None:
    play(run, run.client_files(0), 1)
    mine = run.checkpoint / "client-000000.round-000001.safetensors"
    mine.rename(run.checkpoint / f"{other}.safetensors")
    with pytest.raises(RunError, match=f"{other}.*another client, round or run"):
        run.client_files(2).load(int(other[7:13]))


def test_class_means_that_were_changed_are_refused(run: RunFolder) -> None:
    run.keep_means(1, {"means": torch.ones(2, 3)})
    assert_close(run.means()[1]["means"], torch.ones(2, 3))
    (path,) = (run.path / "means").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="000001"):
        run.means()


def test_what_a_killed_process_wrote_in_part_is_removed(run: RunFolder) -> None:
    run.keep_means(1, {"means": torch.ones(2, 3)})
    play(run, run.client_files(0), 1)
    for folder in (run.path, run.checkpoint, run.path / "means"):
        (folder / "summary.json.0123456789abcdef.part").write_bytes(b"half")
    (run.path / "mine.part").write_text("not of a process")
    live = run.path / "audit.json.0123456789abcdef.part"
    live.write_text("of an audit that goes on: it takes no lock")
    run.rewind()
    assert {path.name for path in run.path.rglob("*.part")} == {"mine.part", live.name}


@pytest.mark.parametrize("content", [None, b"", b"\x08broken", b"x" * 100])
@pytest.mark.parametrize("name", ["server", "client-000000.round-000001"])
def test_a_missing_or_damaged_state_is_refused(
    run: RunFolder, name: str, content: bytes | None
) -> None:
    play(run, run.client_files(0), 1)
    path = run.checkpoint / f"{name}.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match="cannot be resumed"):
        resumed(run)
    assert (run.path / "rounds.jsonl").read_text().count("\n") == 1  # nothing was thrown away


def test_a_state_that_was_cut_short_is_refused(run: RunFolder) -> None:
    play(run, run.client_files(0), 1)
    path = run.checkpoint / "client-000000.round-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunError, match="client-000000"):
        resumed(run)


def test_foreign_files_are_left_alone(run: RunFolder) -> None:
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
