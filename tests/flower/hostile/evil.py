"""What a hostile server sends with its app, and wants to be imported."""

from pathlib import Path

Path("evil-was-here").touch()


def make(*_: object) -> None:
    """Look like the function that makes a network."""
