"""Federated learning for clients whose models differ."""

from importlib.metadata import version

__version__ = version("fedgh")
