"""The JavaScript that draws charts, and their themes; every page contains both."""

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
"""Size limit of the cached script in bytes; the script has one million."""


@cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that loads no other file.

    Bundling takes seconds, so the script is stored in the user's cache.
    """
    cached = Path(pooch.os_cache("fedgh")) / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return read_bytes(cached, MAX_SCRIPT).decode()
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with suppress(OSError):  # without a cache the next call only takes longer
        make_folder(cached.parent)
        write_atomic(cached, script.encode())
    return script


@cache
def themes() -> dict[str, Any]:
    """Return the Vega configurations `light` and `dark`."""
    configurations: dict[str, Any] = json.loads(asset("theme.json"))
    return configurations


@cache
def asset(name: str) -> str:
    """Return the text of a file in assets/."""
    return (resources.files("fedgh") / "report" / "assets" / name).read_text(encoding="utf-8")
