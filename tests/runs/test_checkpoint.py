"""The states of clients in segments: found again, durable, deleted, moved between processes."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.runs.checkpoint import MAX_WASTE, ClientFiles, discard_leftovers, keep_rounds
from fedgh.runs.sealed import pack

CLIENTS = 6
NUMBERS = st.integers(0, CLIENTS - 1)


def state(value: int, size: int = 3) -> Payload:
    return {"w": torch.full((size,), value)}


def value(files: ClientFiles, client: int) -> int | None:
    found = files.load(client)
    return None if found is None else int(found["w"][0])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Processes(RuleBasedStateMachine):
    """Two processes that write, move and seal states, compared with two dictionaries."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        for path in self.folder.iterdir():
            path.unlink()
        self.round = 0  # the last committed one
        self.committed: dict[int, int] = {}
        self.now: dict[int, int] = {}
        self.values = 0
        self.start()

    def start(self) -> None:
        self.parts = ClientFiles(self.folder, self.round, "r").split(2)
        self.owner = {c: i for i, part in enumerate(self.parts) for c in part.clients}

    @rule(client=NUMBERS, size=st.sampled_from([1, 3, 40]))
    def write(self, client: int, size: int) -> None:
        self.values += 1
        part = self.parts[self.owner.setdefault(client, client % 2)]
        part.write(self.round + 1, client, state(self.values, size))
        self.now[client] = self.values

    @rule(client=NUMBERS)
    def move(self, client: int) -> None:
        if client in self.owner:
            origin = self.owner[client]
            span = self.parts[origin].forget(client)
            if span is not None:
                self.parts[1 - origin].adopt(client, span)
            self.owner[client] = 1 - origin

    @rule()
    def commit(self) -> None:
        self.round += 1
        for part in self.parts:
            part.seal(self.round)
        self.committed = dict(self.now)
        for part in self.parts:
            part.delete_superseded()
        segments = sum(path.stat().st_size for path in self.folder.glob("*.states"))
        live = sum(part._live.total() for part in self.parts)  # the index is not counted
        indices = 500 * len(list(self.folder.glob("*.states")))
        assert segments <= (1 + MAX_WASTE) * live + indices

    @rule()
    def crash_and_start(self) -> None:
        discard_leftovers(self.folder, self.round, "r")
        self.now = dict(self.committed)
        self.start()

    @precondition(lambda self: self.now == self.committed)
    @rule(client=NUMBERS)
    def erase(self, client: int) -> None:
        discard_leftovers(self.folder, self.round, "r")
        ClientFiles(self.folder, self.round, "r").erase(client, self.round)
        self.committed.pop(client, None)
        self.now = dict(self.committed)
        self.start()

    @invariant()
    def every_state_is_found(self) -> None:
        for client in range(CLIENTS):
            owner = self.owner.get(client)
            found = None if owner is None else value(self.parts[owner], client)
            assert found == self.now.get(client)
        stored = ClientFiles(self.folder, self.round, "r")
        assert {c: value(stored, c) for c in stored.clients} == self.committed


def test_any_sequence_of_writes_moves_commits_and_crashes(tmp_path: Path) -> None:
    Processes.folder = tmp_path
    run_machine(Processes, settings=settings(max_examples=60, stateful_step_count=30))


def test_a_commit_of_many_clients_is_one_file_that_is_synced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("fedgh.files.os.fsync", synced.append)
    files = ClientFiles(tmp_path, 0)
    for client in range(50):
        files.write(1, client, state(client))
    files.seal(1)
    assert names(tmp_path) == ["clients-000001.round-000001.states"]
    assert len(synced) == 2  # the file and the folder
    assert [value(ClientFiles(tmp_path, 1), client) for client in range(50)] == list(range(50))


def test_a_seal_without_new_states_writes_nothing(tmp_path: Path) -> None:
    files = ClientFiles(tmp_path, 0)
    files.seal(1)
    assert names(tmp_path) == []


def test_a_process_whose_new_states_have_all_moved_writes_nothing(tmp_path: Path) -> None:
    one, other = ClientFiles(tmp_path, 0).split(2)
    one.write(1, 0, state(5))
    span = one.forget(0)
    assert span is not None
    other.adopt(0, span)
    one.seal(1)
    other.seal(1)
    assert names(tmp_path) == ["clients-000002.round-000001.states"]
    assert value(ClientFiles(tmp_path, 1), 0) == 5


def test_a_client_is_found_in_its_last_round_although_other_segments_have_higher_numbers(
    tmp_path: Path,
) -> None:
    one, other = ClientFiles(tmp_path, 0).split(2)
    for round in (1, 2, 3):  # the other process writes nothing
        for client in range(4 if round == 1 else 1):
            one.write(round, client, state(round))
        one.seal(round)
        one.delete_superseded()
    span = one.forget(0)
    assert span is not None
    other.adopt(0, span)
    other.write(4, 0, state(4))
    for process in (one, other):
        process.seal(4)
        process.delete_superseded()
    discard_leftovers(tmp_path, 4, "")
    stored = ClientFiles(tmp_path, 4)
    assert [value(stored, client) for client in range(4)] == [4, 1, 1, 1]
    stored.write(5, 1, state(5))
    stored.seal(5)
    assert len(set(names(tmp_path))) == len(names(tmp_path))
    assert value(ClientFiles(tmp_path, 5), 1) == 5


def test_a_seal_leaves_few_superseded_bytes_in_its_own_segment(tmp_path: Path) -> None:
    files = ClientFiles(tmp_path, 0)
    for round in (1, 2):  # both before the same commit, as if memory was short
        for client in range(20):
            files.write(round, client, state(round, 200))
    files.seal(2)
    (segment,) = tmp_path.iterdir()
    one = len(pack(state(0, 200), client=0, round=1, run=""))
    assert segment.stat().st_size < (1 + MAX_WASTE) * 20 * one + 1500  # with its index


def test_a_full_disk_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ClientFiles(tmp_path, 0)
    for client in range(3):
        files.write(1, client, state(client))
    files.seal(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedgh.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        ClientFiles(tmp_path, 1).erase(0, 1)
    again = ClientFiles(tmp_path, 1)
    again.write(2, 0, state(0))
    with pytest.raises(OSError, match="No space"):
        again.seal(2)
    assert names(tmp_path) == ["clients-000001.round-000001.states"]


def test_states_that_are_replaced_before_a_seal_take_no_space(tmp_path: Path) -> None:
    files, one = ClientFiles(tmp_path, 0), len(pack(state(0, 100), client=0, round=1, run=""))
    for number in range(100):
        files.write(1, number % 2, state(number, 100))
        (part,) = tmp_path.iterdir()
        assert part.stat().st_size <= 4 * one
    assert [value(files, client) for client in (0, 1)] == [98, 99]


def test_an_erased_client_leaves_no_byte_on_the_disk(tmp_path: Path) -> None:
    files = ClientFiles(tmp_path, 0)
    for round in (1, 2):
        for client in range(4 if round == 1 else 1):
            files.write(round, client, {"w": torch.full((4,), 1000 + 100 * client + round)})
        files.seal(round)
        files.delete_superseded()
    secret = [torch.full((4,), 1000 + round).numpy().tobytes() for round in (1, 2)]
    for each in secret:  # the first one is superseded
        assert any(each in path.read_bytes() for path in tmp_path.iterdir())
    ClientFiles(tmp_path, 2).erase(0, 2)
    assert not any(each in path.read_bytes() for path in tmp_path.iterdir() for each in secret)
    assert sorted(ClientFiles(tmp_path, 2).clients) == [1, 2, 3]


def test_of_each_kept_round_the_last_segment_stays(tmp_path: Path) -> None:
    for round in (1, 2, 3, 3):  # round 3 was computed again
        files = ClientFiles(tmp_path, round - 1)
        files.write(round, 0, state(round))
        files.seal(round)
    keep_rounds(tmp_path, {2, 3})
    kept = ["clients-000002.round-000002.states", "clients-000004.round-000003.states"]
    assert names(tmp_path) == kept


def test_a_changed_byte_of_one_state_does_not_concern_the_others(tmp_path: Path) -> None:
    files = ClientFiles(tmp_path, 0)
    for client in range(3):
        files.write(1, client, state(client))
    files.seal(1)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 10] ^= 1
    path.write_bytes(content)
    again = ClientFiles(tmp_path, 1)
    with pytest.raises(RunError, match=r"clients-000001.*the state of client 0 cannot be read"):
        again.load(0)
    assert [value(again, client) for client in (1, 2)] == [1, 2]


def rows(*spans: list[int]) -> torch.Tensor:
    return torch.tensor(spans)


@pytest.mark.parametrize(
    "index",
    [
        {"states": rows([0, 1, 0, 10**9])},
        {"states": rows([0, 1, -5, 3])},
        {"states": rows([0, 1, 5, 3])},
        {"states": rows([0, 1, 0, 1], [0, 1, 1, 2])},
        {"states": rows(*([client, 1, 0, 6] for client in range(40)))},  # they overlap
        {"states": rows([0, 1, 0])},
        {"states": rows([0, 1, 0, 1]).float()},
        {"states": torch.tensor(1)},
        {"other": rows([0, 1, 0, 1])},
        {},
    ],
)
def test_a_false_index_is_refused(index: Payload, tmp_path: Path) -> None:
    content = pack(index, run="", round=1)
    (tmp_path / "clients-000001.round-000001.states").write_bytes(
        b"states" + content + len(content).to_bytes(8, "little")
    )
    with pytest.raises(RunError, match="its index is not one"):
        ClientFiles(tmp_path, 1)
