"""A method outside fedgh with a text field that has no declaration."""

from typing import ClassVar

from fedgh.methods.standalone import Standalone


class Plugin(Standalone):
    """Standalone with an undeclared text field."""

    name: ClassVar[str] = "plugin"

    anything: str = ""
