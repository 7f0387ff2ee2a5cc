"""A configuration from elsewhere names code, files and machines; none is imported, opened, reached.

By enumeration: of the commands, and of the fields that hold text. A new one fails here until it is
decided what it may do.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedgh import cli, config
from fedgh.core.names import Names
from fedgh.errors import ConfigError
from fedgh.methods import METHODS
from fedgh.trust import FOREIGN, OWN, ForeignError
from tests.trust.commands import NO_RUN_FOLDER, READERS, RUN_CODE, Place, make
from tests.trust.names import CASES, FIRST, HOSTILE, followed, texts
from tests.trust.plugin import Plugin
from tests.trust.watch import WATCH


def test_every_kind_of_name_is_tried() -> None:
    of_three_methods = {*HOSTILE, Names.FEATURES, Names.NOTHING}  # features: of fedgh_plus
    assert set(Names) == of_three_methods


def test_every_text_declares_what_it_names() -> None:
    undeclared = [f"{section}.{key}" for _, section, key, names in texts() if names is None]
    assert undeclared == []


def commands(app: typer.Typer, prefix: str = "") -> set[str]:
    """The names of all commands."""
    own = {
        prefix + (command.name or command.callback.__name__)  # type: ignore[union-attr]
        for command in app.registered_commands
    }
    groups = (commands(g.typer_instance, f"{g.name} ") for g in app.registered_groups)  # type: ignore[arg-type]
    return own.union(*groups)


def test_every_command_is_decided() -> None:
    decided = [*READERS, *RUN_CODE, *NO_RUN_FOLDER]
    assert len(set(decided)) == len(decided)
    assert commands(cli.app) == set(decided)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    home = tmp_path_factory.mktemp("elsewhere")
    return {method: make(home / method, method) for method in ("fedgh", "fml", "fedkd")}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What happens during a test, in a folder with code that must not be imported."""
    (tmp_path / "elsewhere_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with WATCH.watching() as seen:
        yield seen


def hostile(place: Place, section: str, key: str, value: str) -> None:
    if key in ("extractors", "callbacks"):
        place.settings(section, key, [value])
    elif section in ("data", "public"):
        place.settings(section, "name", "npz" if key == "path" else "cifar10")
        place.settings(section, key, value)
    else:
        place.settings(section, key, value)


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("method", "section", "key", "value"), FIRST)
def test_no_command_follows_a_name_in_a_folder_from_elsewhere(
    command: str,
    method: str,
    section: str,
    key: str,
    value: str,
    places: dict[str, Place],
    watched: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = places[method].copy(tmp_path / "place")
    hostile(place, section, key, value)
    READERS[command](place, monkeypatch)
    assert followed(watched) == []


@pytest.mark.parametrize("command", RUN_CODE)
def test_what_runs_code_by_its_purpose_is_seen_to_do_so(
    command: str,
    places: dict[str, Place],
    watched: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = places["fml"].copy(tmp_path / "place")
    hostile(place, "method", "shared", "elsewhere_evil:make")
    RUN_CODE[command](place, monkeypatch)
    assert followed(watched) != []


@pytest.mark.parametrize(("method", "section", "key", "value"), CASES)
def test_the_decision_itself(method: str, section: str, key: str, value: str) -> None:
    table = config.load("demo", [f"method.name={method}"]).to_table()
    table[section][key] = [value] if key in ("extractors", "callbacks") else value
    with pytest.raises(ForeignError, match=f"{section}.{key} = '.*' names .* outside fedgh"):
        config.parse(table, FOREIGN)
    if (section, key) == ("method", "name"):
        with pytest.raises(ConfigError, match=r"cannot import|not a subclass"):
            config.parse(table, OWN)
    else:
        assert config.parse(table, OWN).to_table()[section][key] == table[section][key]


def test_what_is_part_of_fedgh_may_be_named() -> None:
    for method in METHODS:
        table = config.load("demo", [f"method.name={method}"]).to_table()
        assert config.parse(table, FOREIGN).method_name == method


NETWORKS = [
    ("fedgh", "model", "extractors"),
    ("fml", "method", "shared"),
    ("fedgh_plus", "method", "features"),
]


def naming(method: str, section: str, key: str, network: str) -> dict[str, Any]:
    table = config.load("demo", [f"method.name={method}"]).to_table()
    table[section][key] = [network] if key == "extractors" else network
    return table


@pytest.mark.parametrize(("method", "section", "key"), NETWORKS)
def test_a_network_of_fedgh_may_be_named_with_a_width(method: str, section: str, key: str) -> None:
    table = naming(method, section, key, "cnn1@1/2")
    assert config.parse(table, FOREIGN).to_table()[section][key] == table[section][key]


@pytest.mark.parametrize("width", ["1/2", "1", "x"])
@pytest.mark.parametrize(("method", "section", "key"), NETWORKS)
def test_a_width_makes_no_other_network_part_of_fedgh(
    method: str, section: str, key: str, width: str, watched: list[str]
) -> None:
    with pytest.raises(ForeignError, match=f"{section}.{key} = 'elsewhere_evil:make@{width}'"):
        config.parse(naming(method, section, key, f"elsewhere_evil:make@{width}"), FOREIGN)
    assert followed(watched) == []


@pytest.mark.parametrize("width", ["1/1000000000", "9" * 10_000, "1/" + "9" * 10_000, "2", ""])
def test_a_width_that_is_none_is_refused(width: str) -> None:
    with pytest.raises(ForeignError) as refused:
        config.parse(naming("fedgh", "model", "extractors", f"cnn1@{width}"), FOREIGN)
    assert len(str(refused.value)) < 1_000


def test_a_field_that_declares_nothing_may_only_have_its_default() -> None:
    name = f"{Plugin.__module__}:{Plugin.__qualname__}"
    allowed = config.names_in(config.parse({"method": {"name": name}}, OWN))
    assert config.parse({"method": {"name": name}}, allowed).method == Plugin()
    table = {"method": {"name": name, "anything": "/etc/passwd"}}
    with pytest.raises(ForeignError, match=r"method\.anything = '/etc/passwd' names something"):
        config.parse(table, allowed)
    with pytest.raises(ForeignError, match=r"method\.name"):
        config.parse(table, FOREIGN)


@pytest.mark.parametrize("command", ["report", "predict", "export", "audit", "newcomer"])
def test_trust_is_offered_where_it_matters(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgh", command, "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--trust" in capsys.readouterr().out
