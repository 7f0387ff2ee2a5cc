"""A module that a malicious server sends with its app; importing it leaves a file."""

from pathlib import Path

Path("evil-was-here").touch()


def make(*_: object) -> None:
    """Have the signature of a function that makes a network."""
