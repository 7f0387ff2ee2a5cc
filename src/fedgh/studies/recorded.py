"""The study whose result a folder has, found by the command in its text (NAME.md).

The folder may come from a remote party: without trust, only settings that name nothing are used.
"""

import shlex
from pathlib import Path
from typing import get_args

from fedgh.choices import BudgetName
from fedgh.errors import ConfigError, RunError
from fedgh.files import read_bytes
from fedgh.studies.reproduce import Reproduction
from fedgh.studies.study import studies

COMMAND = "- command: "
"""Start of the line with the command."""

MAX_TEXT = 2**22
"""Maximum size of the text of a result in bytes."""

MAX_SEEDS = 100
"""Maximum number of seeds of a result that is read: a few characters could ask for any number."""

HARMLESS = ("run.engine", "run.workers")
"""Settings that are used without trust: they name nothing and change no result."""

BUDGETS: dict[str, BudgetName] = {name: name for name in get_args(BudgetName)}


def find_text(path: Path) -> Path | None:
    """Return the text of the study in a folder, or `path` itself if it is one; None without any.

    Raise RunError if the folder has the results of several studies.
    """
    if path.is_file():
        return path if path.stem in studies() and path.suffix == ".md" else None
    folders = [path, *(path / budget for budget in BUDGETS)]
    found = [
        text
        for folder in folders
        for text in sorted(folder.glob("*.md"))
        if text.stem in studies() and text.is_file()
    ]
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise RunError(f"{path} has the results of {len(found)} studies; name one: {names}")
    return found[0] if found else None


def read_request(text: Path, trusted: bool) -> Reproduction:
    """Return the request whose result a text describes.

    Raise RunError if it has none, and ConfigError if its settings need trust.
    """
    try:
        lines = read_bytes(text, MAX_TEXT).decode().splitlines()
        (line,) = (line for line in lines if line.startswith(COMMAND))
        request = _parse(line.removeprefix(COMMAND), text.stem)
    except (OSError, ValueError, LookupError):
        raise RunError(
            f"{text} has no command of `fedgh reproduce`; run it again with --no-run"
        ) from None
    if len(request.seeds) > MAX_SEEDS:
        raise RunError(f"{text} names {len(request.seeds)} seeds; at most {MAX_SEEDS} are read")
    if text.parent.name != request.budget:
        raise RunError(f"{text}: its folder should be named {request.budget}, like its budget")
    foreign = [each for each in request.overrides if each.partition("=")[0] not in HARMLESS]
    if foreign and not trusted:
        raise ConfigError(
            f"{text} was made with --set {foreign[0]}; if the folder is yours, add --trust"
        )
    return request


def _parse(command: str, name: str) -> Reproduction:
    program, verb, study, *options = shlex.split(command)
    values: dict[str, list[str]] = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        values.setdefault(option, []).append(value)
    overrides = values.pop("--set", [])
    (budget,), (seeds,) = values.pop("--budget"), values.pop("--seeds")
    if (program, verb, study) != ("fedgh", "reproduce", name) or values:
        raise ValueError
    return Reproduction(name, BUDGETS[budget], [*map(int, seeds.split(","))], overrides)
