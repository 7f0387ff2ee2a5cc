"""The reference, which is generated from the code, is complete and has the real defaults."""

import json
import re
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

import fedgh
from fedgh.config import Config
from fedgh.methods import METHODS
from tests.docs.blocks import ROOT
from tools.site import api, commands, settings

SECTIONS = {name: field.annotation for name, field in Config.model_fields.items()}
SECTIONS.pop("method")
ARGUMENT_HELP = "A named experiment or a TOML file."


class Example(BaseModel):
    count: int = Field(3, ge=1, lt=9)  # of things
    kind: Literal["a", "b"] = "a"
    share: float | None = None
    """Between none
    and all."""


@dataclass
class Other:
    names: Annotated[list[str], Field(min_length=1)] = field(default_factory=list)


@pytest.mark.parametrize(
    ("model", "key", "kind"),
    [
        (Example, "count", "whole number, ≥ 1, < 9"),
        (Example, "kind", "`a`, `b`"),
        (Example, "share", "number"),
        (Other, "names", "list of text"),
    ],
)
def test_the_values_of_a_key_are_described(model: type, key: str, kind: str) -> None:
    assert settings.kind(settings.keys(model)[key]) == kind


def test_descriptions_are_comments_or_docstrings_of_the_source() -> None:
    expected = {"count": "of things", "kind": "", "share": "Between none and all."}
    assert settings.descriptions(Example) == expected


def table(section: str) -> dict[str, tuple[str, str]]:
    """Return default and description of each key in a section of the page."""
    heading = re.escape(section)
    (text,) = re.findall(rf"^##+ {heading}\n(.*?)(?=^##|\Z)", settings.page(), re.DOTALL | re.M)
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*?) \| (.*?) \|$", text, re.M)
    return {key: (default.strip("`"), description) for key, default, description in rows}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_its_default_and_a_description(section: str) -> None:
    rows = table(f"[{section}]")
    defaults = getattr(Config(), section)
    assert set(rows) == set(settings.keys(SECTIONS[section]))
    for key, (default, description) in rows.items():
        value = json.loads(default) if default else None
        assert value == getattr(defaults, key), key
        assert description, f"{section}.{key} has no comment"


@pytest.mark.parametrize("name", METHODS)
def test_every_key_of_a_method_has_its_default_and_a_description(name: str) -> None:
    rows = table(name)
    defaults = {f.name: getattr(METHODS[name](), f.name) for f in fields(METHODS[name])}
    assert {key: json.loads(default) for key, (default, _) in rows.items()} == defaults
    assert all(description for _, description in rows.values())


def test_the_reference_lists_commands_with_their_options() -> None:
    page = commands.page()
    headings = re.findall(r"^## fedgh (.+)$", page, re.M)
    assert len(headings) == len(set(headings))
    assert {"run", "resume", "list", "data fetch", "flower join", "newcomer"} <= set(headings)
    run = page.partition("## fedgh run")[2].partition("\n## ")[0]
    for text in (
        "`--set` `SECTION.KEY=VALUE`",
        "`--quiet`, `-q`",
        "`[NAME|FILE.toml]`",
        "`demo`",
        ARGUMENT_HELP,
    ):
        assert text in run


def test_the_overview_lists_every_command_and_every_key() -> None:
    overview = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (synopsis,) = re.findall(r"^## Commands\n\n```text\n(.*?)```", overview, re.DOTALL | re.M)
    for name in re.findall(r"^## fedgh (\w+)", commands.page(), re.M):
        assert f"fedgh {name}" in synopsis, name
    for section, model in SECTIONS.items():
        (row,) = re.findall(rf"^\| `{section}` \|(.*)\|$", overview, re.M)
        for key in settings.keys(model):
            assert f"`{key}`" in row, f"{section}.{key}"


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "attack"])
def test_the_overview_shows_the_real_defaults(section: str) -> None:
    overview = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{section}` \|(.*)\|$", overview, re.M)
    shown = dict(re.findall(r"`(\w+)` ([^\s,;|(\\]+)", row))
    for key, text in shown.items():
        default = getattr(getattr(Config(), section), key, None)
        if default is None or isinstance(default, list):
            continue
        assert type(default)(text) == default, f"{section}.{key}"


def test_the_reference_lists_every_public_python_name() -> None:
    page = api.page()
    for name in fedgh.__all__:
        assert f"::: fedgh.{name}\n" in page or name == "__version__"


def test_the_python_reference_begins_with_what_most_people_use() -> None:
    names = re.findall(r"^::: fedgh\.(\S+)$", api.page(), re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[:2] == ["Federation", "ClientSpec"]
    assert max(map(names.index, ("load", "run", "resume", "advise"))) < names.index("Payload")
