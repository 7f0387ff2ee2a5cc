"""A model of a disk that predicts the content of a folder after a power cut.

The bytes of a file are durable once the file is synced, names once their folder is synced. Other
changes may be lost or not.
"""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.faults.disk import Operation

Names = dict[str, "Node"]
Change = dict[str, "Node | None"]  # names that one operation adds (a node) or removes (None)

NAMES = ("none", "last", "all")
"""Unsynced changes of names that survive a power cut in each folder: none, the last or all."""


@dataclass(eq=False)
class Node:
    """A file, or a folder."""

    folder: bool = False
    content: str = ""
    synced: str = ""


@dataclass
class Volatile:
    """A folder with its durable and its volatile changes."""

    _now: Names = field(default_factory=lambda: {".": Node(folder=True)})
    _durable: Names = field(default_factory=lambda: {".": Node(folder=True)})
    _volatile: dict[str, list[Change]] = field(default_factory=dict)

    def do(self, operation: Operation) -> None:
        """Apply an operation; one that failed has no effect."""
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
        self._volatile.setdefault(folders.pop(), []).append(change)

    def _sync(self, path: str, node: Node) -> None:
        node.synced = node.content
        if node.folder:
            for change in self._volatile.pop(path, []):
                _apply(change, self._durable)

    def volatile_changes(self, folder: str) -> list[Change]:
        """Return the changes of names in a folder that a power cut may undo."""
        return self._volatile.get(folder, [])

    def is_durable(self, path: str) -> bool:
        """Return true if all bytes of a file are synced."""
        return self._now[path].content == self._now[path].synced

    def after_power_cut(self, names: str, keep_bytes: bool) -> dict[str, str | None]:
        """Return the files after a power cut: content by path, None for a folder.

        `names` is one of NAMES; with `keep_bytes` unsynced bytes survive, too.
        """
        names_left = dict(self._durable)
        for changes in self._volatile.values():
            spared = {"none": [], "last": changes[-1:], "all": changes}[names]
            for change in spared:
                _apply(change, names_left)
        contents: dict[str, str | None] = {}
        for path in sorted(names_left, key=lambda path: len(PurePosixPath(path).parts)):
            node = names_left[path]
            if path == "." or _parent(path) in contents or _parent(path) == ".":
                content = node.content if keep_bytes else node.synced
                contents[path] = None if node.folder else content
        return contents


def write(remains: dict[str, str | None], workdir: Path) -> None:
    """Write these files and folders to the disk."""
    for name, content in remains.items():
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
