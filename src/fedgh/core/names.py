"""Declarations of what the text in a field of a configuration names, in its annotation.

shared: Annotated[str, Names.NETWORK] = "cnn5"
"""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel


class Names(Enum):
    """The kinds of things that a text may name; using it imports, opens or connects to one."""

    METHOD = "a method"
    NETWORK = "a network"
    FEATURES = "a feature map"
    PATH = "a file or folder"
    MACHINE = "another machine"
    CALLBACK = "a callback"
    NOTHING = "nothing"  # it is shown, or compared with names that fedgh knows


def declarations(section: type[Any]) -> dict[str, Names | None]:
    """Return what the text fields of a section declare; None for one that declares nothing."""
    if is_dataclass(section):
        names = [field.name for field in fields(section)]
    else:
        assert issubclass(section, BaseModel)
        names = list(section.model_fields)
    hints = get_type_hints(section, include_extras=True)
    return {name: _declared(hints[name]) for name in names if _holds_text(hints[name])}


def _declared(hint: Any) -> Names | None:
    """The first declaration in a type, however deep: of `Place | None` that of `Place`."""
    if isinstance(hint, Names):
        return hint
    found = (_declared(part) for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)))
    return next((names for names in found if names is not None), None)


def _holds_text(hint: Any) -> bool:
    """Tell if a type can hold anything but numbers, truth values and words that it lists."""
    if get_origin(hint) is Literal or hint in (bool, int, float, type(None)):
        return False
    if get_origin(hint) is Annotated:
        return _holds_text(get_args(hint)[0])
    parts = get_args(hint)
    return not parts or any(map(_holds_text, parts))
