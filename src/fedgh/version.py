"""The installed version of fedgh."""

from importlib.metadata import version

__version__ = version("fedgh")
