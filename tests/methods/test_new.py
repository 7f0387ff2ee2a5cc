"""`fedgh new-method`: the written method runs, its test passes, no file is replaced."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedgh
from fedgh.errors import ConfigError
from fedgh.methods.new import class_name, new_method
from tests.support.commands import PATIENCE, ROOT, SET, inside

SOURCE = Path(fedgh.__file__).parents[1]


def run_python(*words: str, cwd: Path, path: Path = SOURCE) -> None:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        text=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_written_method_runs_and_its_test_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside(monkeypatch, "new-method", "half_way") == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half_way.py", "test_half_way.py"]
    words = ["method.name=half_way:HalfWay", "method.server_lr=0.5"]
    assert "fedgh run --set " + " --set ".join(words) in said
    assert 'half_way = "half_way:HalfWay"' in said
    more = [word for setting in words for word in ("--set", setting)]
    assert inside(monkeypatch, "run", *SET, *more, "--quiet", "--out", "run") == 0
    run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_half_way.py", cwd=tmp_path)
    del sys.modules["half_way"]


def test_a_missing_output_folder_is_created(tmp_path: Path) -> None:
    made = new_method("half_way", tmp_path / "lab" / "methods")
    assert made.files[0] == tmp_path / "lab" / "methods" / "half_way.py"
    assert all(path.is_file() for path in made.files)
    assert made.changed == ()


@pytest.mark.parametrize("name", ["half_way.py", "test_half_way.py"])
def test_an_existing_file_is_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} exists already"):
        new_method("half_way", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("HalfWay", "lower-case letters"),
        ("half-way", "lower-case letters"),
        ("half__way", "lower-case letters"),
        ("_half", "lower-case letters"),
        ("2half", "lower-case letters"),
        ("../half", "lower-case letters"),
        ("class", "lower-case letters"),
        ("match", "lower-case letters"),
        ("", "lower-case letters"),
        ("fedgh_plus", "there is a method 'fedgh_plus' already"),
        ("random", "there is a Python module 'random' already"),
        ("torch", "there is a Python module 'torch' already"),
    ],
)
def test_an_unsuitable_name_is_rejected(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        new_method(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_class_names_are_derived_from_method_names() -> None:
    assert class_name("my_method") == "MyMethod"
    assert class_name("fedx2") == "Fedx2"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the files about methods in a checkout."""
    for place in ("src/fedgh", "tests/support"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / place, tmp_path / place, ignore=ignored)
    for place in ("tests/methods/__init__.py", "tests/__init__.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)
    return tmp_path


def test_in_a_checkout_the_method_becomes_built_in(checkout: Path) -> None:
    made = new_method("half_way", here=checkout)
    assert made.setting == "half_way"
    assert [path.relative_to(checkout).as_posix() for path in (*made.files, *made.changed)] == [
        "src/fedgh/methods/half_way.py",
        "tests/methods/test_half_way.py",
        "src/fedgh/methods/__init__.py",
    ]
    assert "python -m tools.method_table" in made.next_steps()
    known = "from fedgh.methods import METHODS; assert list(METHODS)[-1] == 'half_way'"
    run_python("-c", known, cwd=checkout, path=checkout / "src")
    test = ("tests/methods/test_half_way.py", "-k", "not engine")
    run_python("-m", "pytest", "-p", "no:cacheprovider", *test, cwd=checkout, path=checkout / "src")
    listing = (checkout / "src/fedgh/methods/__init__.py").read_text()
    imports = re.findall(r"^from fedgh\.methods\.\w+ import \w+$", listing, re.MULTILINE)
    assert imports == sorted(imports)
    with pytest.raises(ConfigError, match=r"half_way\.py exists already"):
        new_method("half_way", here=checkout)


def test_a_checkout_without_the_list_of_methods_is_not_changed(checkout: Path) -> None:
    listing = checkout / "src/fedgh/methods/__init__.py"
    listing.write_text("METHODS = {}\n")
    with pytest.raises(ConfigError, match="the list of methods was not found"):
        new_method("half_way", here=checkout)
    assert not (checkout / "src/fedgh/methods/half_way.py").exists()
