"""A method from elsewhere whose field declares nothing about its text."""

from typing import ClassVar

from fedgh.methods.standalone import Standalone


class Plugin(Standalone):
    """Standalone with a text."""

    name: ClassVar[str] = "plugin"

    anything: str = ""
