"""current.json shows who has answered and who is awaited, and is validated when it is read."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedgh.core.types import Job, Reply
from fedgh.errors import RunError
from fedgh.flower import current
from fedgh.flower.current import CurrentFile, CurrentRound, read_current

RUN = "0123"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "MIN_INTERVAL", 0.01)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CurrentFile]:
    made = CurrentFile(tmp_path, RUN)
    yield made
    made.close()


def jobs(round: int, *clients: int) -> list[Job]:
    return [Job(client, round, b"", evaluate=True) for client in clients]


def when(folder: Path, condition: Callable[[CurrentRound], object]) -> CurrentRound:
    """Return the content of the file as soon as a condition on it holds."""
    for _ in range(1_000):
        found = read_current(folder, RUN)
        if found is not None and condition(found):
            return found
        time.sleep(0.01)
    raise AssertionError(found)


def test_the_file_follows_a_round(file: CurrentFile, tmp_path: Path) -> None:
    before = time.time()
    file.connected({2, 0})
    file.begin(jobs(3, 0, 1, 2), 90.0, tries=1)
    file.ended(Reply(1, 3, error="not connected"), "not connected")
    file.sent(0)
    file.sent(2)
    file.ended(Reply(2, 3, up=b"x"), "answered")
    found = when(tmp_path, lambda c: 2 in c.clients and c.clients[2].state == "answered")
    assert (found.round, found.deadline, found.tries, found.connected) == (3, 90.0, 1, [0, 2])
    assert not found.ended
    states = {client: one.state for client, one in found.in_round().items()}
    assert states == {0: "awaited", 1: "not connected", 2: "answered"}
    assert found.clients[1].reason == "not connected"
    asked, answered = found.clients[2].asked, found.clients[2].answered
    assert asked is not None
    assert answered is not None
    assert before <= asked <= answered <= found.updated <= time.time()
    file.close()
    closed = read_current(tmp_path, RUN)
    assert closed is not None
    assert closed.ended


def test_the_last_answers_survive_another_round_and_a_restart(
    file: CurrentFile, tmp_path: Path
) -> None:
    file.begin(jobs(1, 0, 1), 9.0, tries=1)
    for client in (0, 1):
        file.ended(Reply(client, 1, up=b"x"), "answered")
    file.close()
    later = CurrentFile(tmp_path, RUN)
    later.begin(jobs(2, 1), 9.0, tries=1)
    later.ended(Reply(1, 2, error="late"), "late")
    later.close()
    found = read_current(tmp_path, RUN)
    assert found is not None
    assert list(found.in_round()) == [1]
    rounds = {client: (one.round, one.answered_round) for client, one in found.clients.items()}
    assert rounds == {0: (1, 1), 1: (2, 1)}


def test_the_file_is_written_as_a_sign_of_life(
    file: CurrentFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current, "MAX_INTERVAL", 0.05)
    first = when(tmp_path, lambda c: c.updated > 0).updated
    when(tmp_path, lambda c: c.updated > first + 0.05)


def test_the_file_of_another_run_is_ignored(file: CurrentFile, tmp_path: Path) -> None:
    when(tmp_path, lambda _: True)
    assert read_current(tmp_path, "another") is None
    assert read_current(tmp_path / "nowhere", RUN) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"run": 3}',
        b'{"run": "0123", "round": -1}',
        b'{"run": "0123", "updated": NaN}',
        b'{"run": "0123", "clients": {"a": {}}}',
        b'{"run": "0123", "clients": {"0": {"state": "asleep"}}}',
        b'{"run": "0123", "more": 1}',
        json.dumps({"run": RUN, "clients": {"0": {"reason": "x" * 501}}}).encode(),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "current.json").write_bytes(content)
    with pytest.raises(RunError, match=r"current\.json cannot be read"):
        read_current(tmp_path, RUN)
    other = CurrentFile(tmp_path, RUN)  # a server replaces it
    other.close()
    assert read_current(tmp_path, RUN) is not None


def test_a_text_of_a_client_cannot_control_the_terminal(file: CurrentFile, tmp_path: Path) -> None:
    file.begin(jobs(1, 0), 9.0, tries=1)
    file.ended(Reply(0, 1, error="\x1b[31m" + "x" * 1_000), "failed")
    reason = when(tmp_path, lambda c: c.clients and c.clients[0].reason).clients[0].reason
    assert reason.isprintable()
    assert len(reason) == 500


def test_a_full_disk_does_not_end_the_run_and_the_file_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    file = CurrentFile(folder, RUN)
    file.begin(jobs(1, 0), 9.0, tries=1)
    time.sleep(0.1)  # in which it tries to write
    folder.mkdir()
    file.sent(0)
    when(folder, lambda c: c.round == 1)
    file.close()
