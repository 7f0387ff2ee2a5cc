"""The JavaScript that draws charts, and how they look: both are put into every page."""

import json
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pooch
import vl_convert

from fedgh.files import make_folder, read_bytes, write_atomic

MAX_SCRIPT = 2**25
"""Bytes of the script; it has one million."""


@cache
def javascript() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script without further needs.

    Putting it together takes seconds, so it is kept in the user's cache.
    """
    kept = Path(pooch.os_cache("fedgh")) / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return read_bytes(kept, MAX_SCRIPT).decode()
    made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        make_folder(kept.parent)
        write_atomic(kept, made.encode())
    return made


@cache
def themes() -> dict[str, Any]:
    """Vega configurations, `light` and `dark`."""
    found: dict[str, Any] = json.loads(asset("theme.json"))
    return found


@cache
def asset(name: str) -> str:
    """A file of the page."""
    return (resources.files("fedgh") / "report" / "assets" / name).read_text(encoding="utf-8")
