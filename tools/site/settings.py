"""The reference page of configuration keys; names, types and defaults come from the models."""

import ast
import inspect
import json
import textwrap
from typing import Any

from pydantic import TypeAdapter

from fedgh.config import DEFAULT_METHOD, Config, experiments
from fedgh.core.method import Method
from fedgh.methods import METHODS

HEAD = """# Configuration

An experiment is a TOML file. A key that it leaves out has its default; `--set section.key=value`
changes any key on the command line, and `fedgh run` writes all keys with the values used into
`config.toml` of the run folder. An unknown key or an invalid value is refused before anything runs.
"""

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

TYPE_NAMES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
}


def page() -> str:
    """Return Markdown with every section, the keys of every method, and the named experiments."""
    parts = [HEAD]
    for name, field in Config.model_fields.items():
        if name != "method":
            parts.append(_section(f"[{name}]", field.annotation))
    parts.append(
        "## [method]\n\n"
        f"`name` is one of the methods below (default `{DEFAULT_METHOD}`), or your own as "
        "`package.module:Class`. Each has its own keys.\n"
    )
    parts += [_section(name, method, "###") for name, method in METHODS.items()]
    named = [f"| `{name}` | {line} |" for name, line in experiments().items()]
    parts.append("## Named experiments\n\n| | |\n|---|---|\n" + "\n".join(named) + "\n")
    return "\n".join(parts)


def keys(model: Any) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each key of a section."""
    schemas: dict[str, dict[str, Any]] = TypeAdapter(model).json_schema().get("properties", {})
    if issubclass(model, Method):  # a schema has no default that a function makes
        schemas = {
            name: {**each, "default": getattr(model(), name)} for name, each in schemas.items()
        }
    return schemas


def descriptions(model: Any) -> dict[str, str]:
    """Return the description of each key: the comment beside it, or the docstring under it."""
    bases = [base for base in inspect.getmro(model) if issubclass(base, Method)] or [model]
    return {key: text for base in reversed(bases) for key, text in _written(base).items()}


def _written(model: Any) -> dict[str, str]:
    """Return the descriptions in the source of a class itself, without those of its bases."""
    source = textwrap.dedent(inspect.getsource(model))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = lines[(node.end_lineno or node.lineno) - 1]
            comment = last.encode()[node.end_col_offset :].decode().strip()
            texts[node.target.id] = comment.removeprefix("#").strip() or _docstring(following)
    return texts


def kind(schema: dict[str, Any]) -> str:
    """Return the values that a key accepts, as text."""
    if "anyOf" in schema:
        return " or ".join(kind(choice) for choice in schema["anyOf"] if choice != {"type": "null"})
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("format") == "path":
        return "path"
    if schema["type"] == "array":
        return f"list of {kind(schema['items'])}".replace("number", "numbers")
    bounds = [f"{sign} {schema[name]}" for name, sign in BOUNDS.items() if name in schema]
    return ", ".join([TYPE_NAMES[schema["type"]], *bounds])


def _section(title: str, model: Any, level: str = "##") -> str:
    about = inspect.cleandoc(model.__doc__ or "")
    texts = descriptions(model)
    rows = [
        f"| `{name}` | {kind(schema)} | {_default(schema)} | {texts.get(name, '')} |"
        for name, schema in keys(model).items()
    ]
    head = ["| key | values | default | description |", "|---|---|---|---|"]
    table = [*head, *rows] if rows else ["No keys."]
    return "\n".join([f"{level} {title}\n", about, "", *table, ""])


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default", [])
    return "" if value is None else f"`{json.dumps(value)}`"


def _docstring(node: ast.stmt | None) -> str:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return ""
    return " ".join(str(node.value.value).split())
