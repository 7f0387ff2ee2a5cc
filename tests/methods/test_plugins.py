"""Methods of other packages: found by entry points, imported only if a configuration is trusted."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgh import config, methods
from fedgh.errors import ConfigError
from fedgh.training import loop
from fedgh.trust import FOREIGN, ForeignError
from tests.support.commands import inside
from tests.support.tiny import quick

MODULE = '''
from fedgh.methods.fedproto import FedProto

class Cosine(FedProto):
    """A method of another package."""

    extra: float = 1.0
'''
ENTRIES = """[fedgh.methods]
cosine = a_plugin:Cosine
fedgh = a_plugin:Cosine
again = a_plugin_too:Cosine
broken = a_plugin:Missing
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with entry points, as pip does."""
    info = tmp_path / "a_plugin-1.0.dist-info"
    info.mkdir()
    (tmp_path / "a_plugin.py").write_text(MODULE)
    (tmp_path / "a_plugin_too.py").write_text("from a_plugin import Cosine")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    methods.plugins.cache_clear()
    yield
    methods.plugins.cache_clear()
    for name in ("a_plugin", "a_plugin_too"):
        sys.modules.pop(name, None)


def test_a_plug_in_has_a_short_name(tmp_path: Path) -> None:
    settings = config.load("demo", ["method.name=cosine", "method.extra=2.0"])
    assert settings.method_name == "cosine"
    assert config.parse(settings.to_table()).method == settings.method
    run = loop.run(quick("method.name=cosine", "federation.rounds=1"), tmp_path / "run")
    assert loop.resume(run.path).summary().method == "cosine"


def test_a_plug_in_replaces_no_method_of_the_package() -> None:
    assert set(methods.plugins()) == {"cosine", "again", "broken"}
    assert config.load("demo", ["method.name=fedgh"]).method.name == "fedgh"


def test_plug_ins_are_listed_without_being_imported() -> None:
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        config.load("demo", ["method.name=cosin"])
    assert "a_plugin" not in sys.modules


def test_an_untrusted_configuration_imports_no_plug_in() -> None:
    with pytest.raises(ForeignError, match=r"method\.name = 'cosine' names a method outside fedgh"):
        config.parse({"method": {"name": "cosine"}}, FOREIGN)
    assert "a_plugin" not in sys.modules


def test_a_missing_plug_in_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"method\.name: cannot import 'a_plugin:Missing'"):
        config.load("demo", ["method.name=broken"])


def test_a_plug_in_keeps_its_name_if_another_module_defines_it() -> None:
    assert config.load("demo", ["method.name=again"]).method_name == "again"


def test_a_name_of_two_packages_is_ignored(tmp_path: Path) -> None:
    other = tmp_path / "other_plugin-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[fedgh.methods]\ncosine = elsewhere:Cosine\n")
    methods.plugins.cache_clear()
    assert "cosine" not in methods.plugins()


@pytest.mark.parametrize(
    ("options", "title"), [([], "plug-ins\n"), (["--private"], "plug-ins (not filtered)\n")]
)
def test_plug_ins_are_among_the_listed_methods(
    options: list[str],
    title: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inside(monkeypatch, "list", "methods", *options) == 0
    _, found, rest = capsys.readouterr().out.partition(title)
    assert found
    assert "a_plugin:Cosine" in rest
    assert "a_plugin" not in sys.modules
