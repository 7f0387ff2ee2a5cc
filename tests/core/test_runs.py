import json
import os
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from fedgh.core import checkpoint
from fedgh.core.checkpoint import ClientFiles
from fedgh.core.runs import RunFolder
from fedgh.errors import RunError


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", "", [])


def play(run: RunFolder, files: ClientFiles, round: int) -> None:
    files.save(round, [(0, {"w": torch.full((2,), float(round))})])
    run.append({"round": round})
    run.commit(round, {"s": torch.tensor(round)})


def test_a_folder_in_use_is_not_overwritten(run: RunFolder) -> None:
    with pytest.raises(RunError, match="fedgh resume"):
        RunFolder.create(run.path, "", [])


def test_only_one_process_writes(run: RunFolder) -> None:
    with run.locked(), pytest.raises(RunError, match="in use"), run.locked():
        pass
    with run.locked():
        pass


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        RunFolder.open(tmp_path)


def test_a_new_run_starts_at_nothing(run: RunFolder) -> None:
    assert run.rewind() == (0, None)


def test_an_unfinished_round_is_forgotten(run: RunFolder) -> None:
    files = ClientFiles(run.checkpoint, 0)
    play(run, files, 1)
    play(run, files, 2)
    # Round 3 got as far as its client files and half its line.
    files.save(3, [(0, {"w": torch.zeros(2)}), (1, {"w": torch.zeros(2)})])
    (run.checkpoint / "server.safetensors.123.part").write_bytes(b"half")
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    round, state = run.rewind()
    assert round == 2
    assert state is not None
    assert_close(state["s"], torch.tensor(2))
    assert [record["round"] for record in run.records()] == [1, 2]
    assert sorted(p.name for p in run.checkpoint.iterdir()) == [
        "client-000000.round-000002.safetensors",
        "server.safetensors",
    ]
    restored = ClientFiles(run.checkpoint, 2).load(0)
    assert restored is not None
    assert_close(restored["w"], torch.full((2,), 2.0))
    assert ClientFiles(run.checkpoint, 2).load(1) is None


def test_a_line_that_was_written_but_not_committed_is_forgotten(run: RunFolder) -> None:
    play(run, ClientFiles(run.checkpoint, 0), 1)
    run.append({"round": 2})
    assert run.rewind()[0] == 1
    assert [record["round"] for record in run.records()] == [1]


def test_damage_is_named_not_ignored(run: RunFolder) -> None:
    files = ClientFiles(run.checkpoint, 0)
    play(run, files, 1)
    (run.path / "rounds.jsonl").write_text(json.dumps({"round": 7}) + "\n")
    with pytest.raises(RunError, match="rounds 1 to 1"):
        run.rewind()
    (run.checkpoint / "server.safetensors").write_bytes(b"\x08broken")
    with pytest.raises(RunError, match=r"server\.safetensors"):
        run.rewind()


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    checkpoint.write_atomic(path, b"old")

    def crash(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
