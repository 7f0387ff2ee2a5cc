"""`fedgh new-method`: write the file of a method that runs, and its test, from templates."""

import re
import sys
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path

from fedgh.errors import ConfigError
from fedgh.files import make_folder, read_bytes, write_atomic
from fedgh.methods import ENTRY_POINTS, METHODS, plugins

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

METHODS_DIR, TESTS_DIR = Path("src/fedgh/methods"), Path("tests/methods")
"""Folders in a checkout of fedgh."""

TEMPLATE_NAMES = ("Client", "Generator", "Path", "Payload", "Task", "Upload", "Uploads")
"""Names that the written files import."""

MAX_FILE = 2**20
"""Bytes of a source file to which a line is added."""


@dataclass(frozen=True)
class NewMethod:
    """The files of a new method, and the value of `method.name`."""

    name: str
    setting: str  # the value of `method.name`
    files: tuple[Path, ...]
    changed: tuple[Path, ...]  # files of fedgh to which a line was added

    @property
    def test(self) -> Path:
        """The file of its test."""
        return self.files[1]

    def next_steps(self) -> str:
        """Return the commands that run, test, compare and publish the method."""
        lines = [f"written    {path}" for path in self.files]
        lines += [f"changed    {path}" for path in self.changed]
        if not self.changed and self.test.parent != Path():
            lines.append(f"then       cd {self.test.parent}")
        lines += [
            f"run it     fedgh run --set method.name={self.setting} --set method.server_lr=0.5",
            f"test it    python -m pytest {self.test if self.changed else self.test.name}",
            f"compare    fedgh compare --methods lg_fedavg,{self.setting} --seeds 0,1,2",
        ]
        if self.changed:
            lines.append(
                "document   a section of docs/methods.md; then python -m tools.method_table"
            )
        else:
            lines.append(
                f'publish    in your pyproject.toml: [project.entry-points."{ENTRY_POINTS}"] '
                f'{self.name} = "{self.setting}"'
            )
        return "\n".join(lines)


def new_method(name: str, out: Path | None = None, here: Path = Path()) -> NewMethod:
    """Write a method and its test to `out`.

    Without `out` they are written to the folder `here`. If that is a checkout of fedgh, they go to
    its folders of methods and tests, and the method becomes built in. Raise ConfigError if the name
    is not possible or a file exists.
    """
    _check_name(name)
    inside = out is None and (here / METHODS_DIR / "__init__.py").is_file()
    folder = here if out is None else out
    source = (here / METHODS_DIR if inside else folder) / f"{name}.py"
    test = (here / TESTS_DIR if inside else folder) / f"test_{name}.py"
    for path in (source, test):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already; choose another name, or remove it")
    if not inside and (name in sys.stdlib_module_names or find_spec(name) is not None):
        raise ConfigError(f"there is a Python module '{name}' already; choose another name")
    added = _built_in(here, name) if inside else {}  # before anything is written: it may raise
    values = {"NAME": name, "CLASS": class_name(name), "IMPORTS": _imports(name, inside)}
    for template, path in (("method", source), ("test", test)):
        make_folder(path.parent)
        write_atomic(path, _filled(template, values).encode())
    for path, text in added.items():
        write_atomic(path, text.encode())
    setting = name if inside else f"{name}:{class_name(name)}"
    return NewMethod(name, setting, (source, test), tuple(added))


def class_name(name: str) -> str:
    """Return the class name of a method: MyMethod for my_method."""
    return "".join(word[0].upper() + word[1:] for word in name.split("_"))


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name) or iskeyword(name) or issoftkeyword(name):
        raise ConfigError(
            f"'{name}' cannot be the name of a method: write lower-case letters, digits and "
            "single underscores, such as my_method"
        )
    if class_name(name) in TEMPLATE_NAMES or name in ("conftest", "setup"):
        raise ConfigError(f"'{name}' is used in the files that are written; choose another name")
    if name in METHODS or name in plugins():
        raise ConfigError(f"there is a method '{name}' already; choose another name")


def _imports(name: str, inside: bool) -> str:
    """Return the import lines of the test, in the order that linters require."""
    shared = [
        "from fedgh.methods.api import Task, Upload, Uploads",
        "from fedgh.testing import check_method",
    ]
    if inside:
        return "\n".join(sorted([*shared, f"from fedgh.methods.{name} import {class_name(name)}"]))
    return "\n".join([*shared, "", f"from {name} import {class_name(name)}"])


def _filled(template: str, values: dict[str, str]) -> str:
    text = (resources.files("fedgh.methods") / "templates" / f"{template}.txt").read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _built_in(here: Path, name: str) -> dict[Path, str]:
    """Return the text of the file that lists all methods, with lines for this one."""
    path = here / METHODS_DIR / "__init__.py"
    text = read_bytes(path, MAX_FILE).decode()
    for word in (name, class_name(name)):
        if re.search(rf"\b{word}\b", text):
            raise ConfigError(f"{path} has a name '{word}' already; choose another name")
    imports = re.compile(r"^from fedgh\.methods\.\w+ import \w+\n", re.MULTILINE)
    line = f"from fedgh.methods.{name} import {class_name(name)}\n"
    text = _after(path, text, imports, line, sort=True)
    entries = re.compile(r"(?<=    for method in \(\n)(?:        \w+,\n)+", re.MULTILINE)
    return {path: _after(path, text, entries, f"        {class_name(name)},\n")}


def _after(path: Path, text: str, lines: re.Pattern[str], line: str, *, sort: bool = False) -> str:
    """Return text with a line added after the last match, or at its place in sorted lines."""
    matches = list(lines.finditer(text))
    if not matches:
        raise ConfigError(
            f"{path}: the list of methods was not found; add the line yourself: {line.strip()}"
        )
    before = [match for match in matches if match[0] < line] if sort else matches
    position = before[-1].end() if before else matches[0].start()
    return text[:position] + line + text[position:]
