"""Declarations, in the annotation of a text field of a configuration, of what its text names.

shared: Annotated[str, Names.NETWORK] = "cnn5"
"""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel


class Names(Enum):
    """Kinds of things that a text may name and that are imported, opened or connected to."""

    METHOD = "a method"
    NETWORK = "a network"
    FEATURES = "a feature map"
    PATH = "a file or folder"
    MACHINE = "another machine"
    CALLBACK = "a callback"
    NOTHING = "nothing"  # the text is only displayed, or compared with names that fedgh knows


def declarations(section: type[Any]) -> dict[str, Names | None]:
    """Return the kinds that the text fields of a section declare; None for an undeclared field."""
    if is_dataclass(section):
        names = [field.name for field in fields(section)]
    else:
        assert issubclass(section, BaseModel)
        names = list(section.model_fields)
    hints = get_type_hints(section, include_extras=True)
    return {name: _declared(hints[name]) for name in names if _holds_text(hints[name])}


def _declared(hint: Any) -> Names | None:
    """Return the first declaration in a type, at any depth, such as in `FilePath | None`."""
    if isinstance(hint, Names):
        return hint
    nested = (_declared(part) for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)))
    return next((names for names in nested if names is not None), None)


def _holds_text(hint: Any) -> bool:
    """Return True if a type can hold text other than the values of a Literal."""
    if get_origin(hint) is Literal or hint in (bool, int, float, type(None)):
        return False
    if get_origin(hint) is Annotated:
        return _holds_text(get_args(hint)[0])
    parts = get_args(hint)
    return not parts or any(map(_holds_text, parts))
