"""Of two who want to begin a run in the same folder one gets it, and all of it."""

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


def claim(path: Path, name: str) -> AbstractContextManager[RunFolder]:
    """Begin a run all of whose files say whose it is."""
    return RunFolder.create(
        path,
        name,
        Identity(name=name, classes=[], fingerprint=""),
        [ClientInfo(client=0, extractor=name, classes={})],
        {},
    )


def owners(path: Path) -> set[str]:
    """Who has written the files of a run."""
    about = json.loads((path / "data.json").read_bytes())
    (client,) = json.loads((path / "clients.json").read_bytes())
    RunFolder(path).committed()  # refuses a state of another than data.json is of
    return {(path / "config.toml").read_text(), about["name"], client["extractor"]}


@pytest.mark.parametrize("pair", range(10))
def test_of_two_who_begin_at_the_same_instant_one_does(tmp_path: Path, pair: int) -> None:
    path, begun = tmp_path / "run", list[str]()
    start, finish = Barrier(2, timeout=30), Barrier(2, timeout=30)

    def begin(name: str) -> None:
        start.wait()
        with ExitStack() as stack:
            with suppress(RunError):
                stack.enter_context(claim(path, name))
                begun.append(name)
            finish.wait()

    threads = [Thread(target=begin, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1
    assert owners(path) == set(begun)


def test_nobody_begins_while_another_is_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, written = tmp_path / "run", list[str]()

    def disturbed(file: Path, content: bytes) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(folder, "write_atomic", write_atomic)
            with pytest.raises(RunError, match="in use"), claim(path, "other"):
                pass
        write_atomic(file, content)
        written.append(file.name)

    monkeypatch.setattr(folder, "write_atomic", disturbed)
    with claim(path, "one"):
        assert written == ["data.json", "clients.json", "config.toml"]
    assert owners(path) == {"one"}
