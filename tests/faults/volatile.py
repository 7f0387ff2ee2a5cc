"""What a power cut may leave of a folder: only what was synced is sure.

A model of a disk: a file's bytes last once the file is synced, names last once their folder is.
What was not synced may be there or not.
"""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.faults.disk import Operation

Names = dict[str, "Node"]
Change = dict[str, "Node | None"]  # names that come or go in one step

NAMES = ("none", "last", "all")
"""Which changes of names, of those that were not synced, a power cut may spare in each folder."""


@dataclass(eq=False)
class Node:
    """A file, or a folder."""

    folder: bool = False
    content: str = ""
    synced: str = ""


@dataclass
class Volatile:
    """A folder on a disk that forgets."""

    _now: Names = field(default_factory=lambda: {".": Node(folder=True)})
    _sure: Names = field(default_factory=lambda: {".": Node(folder=True)})
    _unsure: dict[str, list[Change]] = field(default_factory=dict)

    def do(self, operation: Operation) -> None:
        """Do what was done; what had failed, fails again."""
        path, node = operation.path, self._now.get(operation.path)
        if operation.kind == "open":
            if node is None:
                self._name({path: Node()})
            elif operation.other == "w":
                node.content = ""
        elif operation.kind == "write":
            assert node is not None
            node.content += operation.data
        elif operation.kind == "mkdir":
            if node is None and _parent(path) in self._now:
                self._name({path: Node(folder=True)})
        elif operation.kind == "rename":
            assert node is not None
            self._name({path: None, operation.other: node})
        elif operation.kind == "unlink":
            if node is not None:
                self._name({path: None})
        else:
            assert operation.kind == "fsync", operation
            assert node is not None
            self._sync(path, node)

    def _name(self, change: Change) -> None:
        folders = {_parent(path) for path in change}
        assert len(folders) == 1, "renamed between folders"
        _apply(change, self._now)
        self._unsure.setdefault(folders.pop(), []).append(change)

    def _sync(self, path: str, node: Node) -> None:
        node.synced = node.content
        if node.folder:
            for change in self._unsure.pop(path, []):
                _apply(change, self._sure)

    def unsure_names(self, folder: str) -> list[Change]:
        """Changes in a folder that a power cut may undo."""
        return self._unsure.get(folder, [])

    def is_sure(self, path: str) -> bool:
        """Whether the bytes of a file would all survive."""
        return self._now[path].content == self._now[path].synced

    def left(self, names: str, bytes_too: bool) -> dict[str, str | None]:
        """What a power cut leaves; None is a folder. `names` is one of NAMES."""
        kept = dict(self._sure)
        for changes in self._unsure.values():
            spared = {"none": [], "last": changes[-1:], "all": changes}[names]
            for change in spared:
                _apply(change, kept)
        found: dict[str, str | None] = {}
        for path in sorted(kept, key=lambda path: len(PurePosixPath(path).parts)):
            node = kept[path]
            if path == "." or _parent(path) in found or _parent(path) == ".":
                content = node.content if bytes_too else node.synced
                found[path] = None if node.folder else content
        return found


def write(left: dict[str, str | None], workdir: Path) -> None:
    """Make it so."""
    for name, content in left.items():
        if content is None:
            (workdir / name).mkdir(exist_ok=True)
        else:
            (workdir / name).write_bytes(content.encode("latin-1"))


def _apply(change: Change, names: Names) -> None:
    for path, node in change.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)
