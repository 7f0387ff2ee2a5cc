"""Rules of the source: unique class names, modules in the architecture, form of docstrings."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_class_name_means_one_class() -> None:
    found = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.name)
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


def test_the_architecture_names_every_module() -> None:
    """Except methods and commands, which are one module each and have pages of their own."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if not path.name.startswith("__") and path.parent.name not in ("methods", "cli")
    ]
    assert modules
    missing = [path.name for path in modules if not re.search(rf"\b{path.name}\b", text)]
    assert missing == []


def test_no_test_imports_a_test() -> None:
    importing = re.compile(r"^(?:from|import) tests\.(?:\w+\.)*(?:test_|conftest)", re.MULTILINE)
    tests = (ROOT / "tests").rglob("*.py")
    assert [path.name for path in tests if importing.search(path.read_text())] == []


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    question = re.compile(r"(What|Whether|How|Who|Whose|Whom|Which|Where|Whatever|Whoever)\b")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("src", "tests", "tools", "benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and question.match(node.value.value.strip())
    ]
    assert found == []
