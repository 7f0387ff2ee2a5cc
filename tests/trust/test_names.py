"""Names of code, files and machines in a configuration of a remote party are not followed.

The tests enumerate all commands and all fields with text. A new command or field fails here until
it is classified.
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
from tests.trust.commands import NO_RUN_FOLDER, READERS, RUN_CODE, RemoteFolder, make
from tests.trust.names import CASES, FIRST_OF_EACH_KIND, HOSTILE, evil_events, texts
from tests.trust.plugin import Plugin
from tests.trust.watch import RECORDER


def test_hostile_texts_exist_for_every_kind_of_name() -> None:
    of_three_methods = {
        *HOSTILE,
        Names.FEATURES,
        Names.NOTHING,
    }  # features are a field of fedgh_plus, not in these texts
    assert set(Names) == of_three_methods


def test_every_text_declares_what_it_names() -> None:
    undeclared = [f"{section}.{key}" for _, section, key, names in texts() if names is None]
    assert undeclared == []


def commands(app: typer.Typer, prefix: str = "") -> set[str]:
    """Return the names of all commands."""
    own = {
        prefix + (command.name or command.callback.__name__)  # type: ignore[union-attr]
        for command in app.registered_commands
    }
    groups = (commands(g.typer_instance, f"{g.name} ") for g in app.registered_groups)  # type: ignore[arg-type]
    return own.union(*groups)


def test_every_command_is_classified() -> None:
    classified = [*READERS, *RUN_CODE, *NO_RUN_FOLDER]
    assert len(set(classified)) == len(classified)
    assert commands(cli.app) == set(classified)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RemoteFolder]:
    root = tmp_path_factory.mktemp("elsewhere")
    return {method: make(root / method, method) for method in ("fedgh", "fml", "fedkd")}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Audit events of a test, in a folder with code that must not be imported."""
    (tmp_path / "elsewhere_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with RECORDER.recording() as events:
        yield events


def set_hostile_text(folder: RemoteFolder, section: str, key: str, value: str) -> None:
    if key in ("extractors", "callbacks"):
        folder.settings(section, key, [value])
    elif section in ("data", "public"):
        folder.settings(section, "name", "npz" if key == "path" else "cifar10")
        folder.settings(section, key, value)
    else:
        folder.settings(section, key, value)


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("method", "section", "key", "value"), FIRST_OF_EACH_KIND)
def test_no_command_follows_a_name_in_a_folder_of_a_remote_party(
    command: str,
    method: str,
    section: str,
    key: str,
    value: str,
    folders: dict[str, RemoteFolder],
    events: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = folders[method].copy(tmp_path / "folder")
    set_hostile_text(folder, section, key, value)
    READERS[command](folder, monkeypatch)
    assert evil_events(events) == []


@pytest.mark.parametrize("command", RUN_CODE)
def test_commands_that_run_code_on_purpose_import_it(
    command: str,
    folders: dict[str, RemoteFolder],
    events: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = folders["fml"].copy(tmp_path / "folder")
    set_hostile_text(folder, "method", "shared", "elsewhere_evil:make")
    RUN_CODE[command](folder, monkeypatch)
    assert evil_events(events) != []


@pytest.mark.parametrize(("method", "section", "key", "value"), CASES)
def test_a_hostile_text_is_refused_in_a_foreign_configuration_only(
    method: str, section: str, key: str, value: str
) -> None:
    table = config.load("demo", [f"method.name={method}"]).to_table()
    table[section][key] = [value] if key in ("extractors", "callbacks") else value
    with pytest.raises(ForeignError, match=f"{section}.{key} = '.*' names .* outside fedgh"):
        config.parse(table, FOREIGN)
    if (section, key) == ("method", "name"):
        with pytest.raises(ConfigError, match=r"cannot import|not a subclass"):
            config.parse(table, OWN)
    else:
        assert config.parse(table, OWN).to_table()[section][key] == table[section][key]


def test_every_method_of_fedgh_may_be_named() -> None:
    for method in METHODS:
        table = config.load("demo", [f"method.name={method}"]).to_table()
        assert config.parse(table, FOREIGN).method_name == method


NETWORKS = [
    ("fedgh", "model", "extractors"),
    ("fml", "method", "shared"),
    ("fedgh_plus", "method", "features"),
]


def table_with_network(method: str, section: str, key: str, network: str) -> dict[str, Any]:
    table = config.load("demo", [f"method.name={method}"]).to_table()
    table[section][key] = [network] if key == "extractors" else network
    return table


@pytest.mark.parametrize(("method", "section", "key"), NETWORKS)
def test_a_network_of_fedgh_may_be_named_with_a_width(method: str, section: str, key: str) -> None:
    table = table_with_network(method, section, key, "cnn1@1/2")
    assert config.parse(table, FOREIGN).to_table()[section][key] == table[section][key]


@pytest.mark.parametrize("width", ["1/2", "1", "x"])
@pytest.mark.parametrize(("method", "section", "key"), NETWORKS)
def test_a_network_outside_fedgh_is_refused_with_a_width_too(
    method: str, section: str, key: str, width: str, events: list[str]
) -> None:
    with pytest.raises(ForeignError, match=f"{section}.{key} = 'elsewhere_evil:make@{width}'"):
        config.parse(
            table_with_network(method, section, key, f"elsewhere_evil:make@{width}"), FOREIGN
        )
    assert evil_events(events) == []


@pytest.mark.parametrize("width", ["1/1000000000", "9" * 10_000, "1/" + "9" * 10_000, "2", ""])
def test_an_invalid_width_is_refused_with_a_short_message(width: str) -> None:
    with pytest.raises(ForeignError) as refused:
        config.parse(table_with_network("fedgh", "model", "extractors", f"cnn1@{width}"), FOREIGN)
    assert len(str(refused.value)) < 1_000


def test_a_field_without_declaration_must_have_its_default() -> None:
    name = f"{Plugin.__module__}:{Plugin.__qualname__}"
    allowed = config.names_in(config.parse({"method": {"name": name}}, OWN))
    assert config.parse({"method": {"name": name}}, allowed).method == Plugin()
    table = {"method": {"name": name, "anything": "/etc/passwd"}}
    with pytest.raises(ForeignError, match=r"method\.anything = '/etc/passwd' names something"):
        config.parse(table, allowed)
    with pytest.raises(ForeignError, match=r"method\.name"):
        config.parse(table, FOREIGN)


@pytest.mark.parametrize("command", ["report", "predict", "export", "audit", "newcomer"])
def test_commands_that_use_networks_offer_trust(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgh", command, "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--trust" in capsys.readouterr().out
