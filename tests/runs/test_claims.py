"""If two processes create a run in the same folder, exactly one succeeds and writes all files."""

import json
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from threading import Barrier, Thread

import pytest

from fedgh.core.records import ClientInfo, Identity
from fedgh.errors import RunError
from fedgh.files import write_atomic
from fedgh.runs import folder
from fedgh.runs.folder import RunFolder


def create_named(path: Path, name: str) -> AbstractContextManager[RunFolder]:
    """Create a run with `name` in each of its files."""
    return RunFolder.create(
        path,
        name,
        Identity(name=name, classes=[], fingerprint=""),
        [ClientInfo(client=0, extractor=name, classes={})],
        {},
    )


def names_in_files(path: Path) -> set[str]:
    """Return the names in the files of a run that `create_named` wrote."""
    identity = json.loads((path / "data.json").read_bytes())
    (client,) = json.loads((path / "clients.json").read_bytes())
    RunFolder(path).committed()  # raises if the state is of another run than data.json
    return {(path / "config.toml").read_text(), identity["name"], client["extractor"]}


@pytest.mark.parametrize("repetition", range(10))
def test_one_of_two_simultaneous_creations_succeeds(tmp_path: Path, repetition: int) -> None:
    path, created = tmp_path / "run", list[str]()
    start, finish = Barrier(2, timeout=30), Barrier(2, timeout=30)

    def create(name: str) -> None:
        start.wait()
        with ExitStack() as stack:
            with suppress(RunError):
                stack.enter_context(create_named(path, name))
                created.append(name)
            finish.wait()

    threads = [Thread(target=create, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(created) == 1
    assert names_in_files(path) == set(created)


def test_a_run_cannot_be_created_while_another_process_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "run", list[str]()

    def write_after_a_second_attempt(file: Path, content: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(folder, "write_atomic", write_atomic)
            with pytest.raises(RunError, match="in use"), create_named(path, "other"):
                pass
        write_atomic(file, content)
        written.append(file.name)

    monkeypatch.setattr(folder, "write_atomic", write_after_a_second_attempt)
    with create_named(path, "one"):
        assert written == ["data.json", "clients.json", "config.toml"]
    assert names_in_files(path) == {"one"}
