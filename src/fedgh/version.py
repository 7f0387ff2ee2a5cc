"""The version of fedgh that is installed."""

from importlib.metadata import version

__version__ = version("fedgh")
