"""Somebody who does what a page says, in an empty folder."""

import contextlib
import doctest
import importlib
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgh import cli, config
from fedgh.data import sources
from fedgh.data.sources import DataLocation, Source
from tests.docs.blocks import Block, Command, commands
from tests.docs.tables import HARMLESS, NOT_RUN, SMALL, SMALL_FIRST, SMALL_LAST


class Reader:
    """One namespace, one folder; what was imported from there is forgotten at the end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.patch = monkeypatch
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        monkeypatch.setenv("COLUMNS", "200")
        for name, classes in (("cifar10", 10), ("cifar100", 100)):
            monkeypatch.setitem(sources.SOURCES, name, _stand_in(name, classes))

    def follow(self, block: Block) -> None:
        """Do what one block says."""
        if block.file:
            self._save(block.file, block.text)
        if block.language == "python":
            self._python(block)
        elif block.language == "pycon":
            self._session(block)
        elif block.language == "toml":
            config.parse(tomllib.loads(block.text))
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "console":
            for command in commands(block):
                self._type(command, block.where)
        else:
            assert block.language == "text", f"{block.where}: is this code, or text?"

    def leave(self) -> None:
        """Forget the modules of this folder."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]

    def _save(self, name: str, text: str) -> None:
        Path(name).write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    def _python(self, block: Block) -> None:
        code = compile(block.text, block.where, "exec")
        if not block.file:
            exec(code, self.names)

    def _session(self, block: Block) -> None:
        """What is typed at Python's prompt answers what the page shows; lines may be broken."""
        self.patch.setattr(doctest, "ELLIPSIS_MARKER", r"\u2026")  # as it reads …
        test = doctest.DocTestParser().get_doctest(
            block.text, self.names, block.page, None, block.line
        )
        out = io.StringIO()
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        doctest.DocTestRunner(optionflags=flags).run(test, out=out.write, clear_globs=False)
        assert not out.getvalue(), out.getvalue()
        self.names.update(test.globs)

    def _type(self, command: Command, where: str) -> None:
        if command.text in NOT_RUN:
            return
        first, *words = shlex.split(command.text)
        if first == "fedgh":
            self._fedgh(words, command, where)
        elif first == "cd":
            self.patch.chdir(*words)
        else:
            assert first in HARMLESS, f"{where}: {command.text}: run it, or list it in tables.py"
            subprocess.run(["sh", "-ec", command.text], check=True, timeout=60)

    def _fedgh(self, words: list[str], command: Command, where: str) -> None:
        """In this process, smaller; it fails if and only if the page says so."""
        fails = any(line.startswith("error: ") for line in command.output)
        self.patch.setattr(sys, "argv", ["fedgh", *smaller(words, fails)])
        out = io.StringIO()
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
        assert bool(ended.value.code) == fails, f"{where}: {command.text}\n{out.getvalue()}"
        for line in command.output:
            shown = ".*".join(map(re.escape, line.split("…")))
            found = re.search(f"^{shown}$", out.getvalue(), re.MULTILINE)
            assert found, f"{where}: {command.text}\n{out.getvalue()}"


def smaller(words: list[str], fails: bool) -> list[str]:
    """The same command with the changes of `tables`; what is to fail keeps what it says."""
    name = next((name for name in SMALL if words[: len(name.split())] == name.split()), None)
    if name is None:
        return words
    typed = len(name.split())
    head = [*words[:typed], *_set(SMALL_FIRST), *words[typed:]]
    return head if fails else [*head, *_set(SMALL_LAST), *SMALL[name]]


def _set(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _stand_in(name: str, classes: int) -> Any:
    """As many classes, shapes and types as the real data set; noise instead of images."""

    def source(where: DataLocation) -> Source:
        y = torch.arange(classes * 20) % classes
        x = torch.randint(256, (len(y), 3, 32, 32), generator=torch.Generator().manual_seed(0))
        return Source(name, x.to(torch.uint8), y, tuple(map(str, range(classes))))

    return source
