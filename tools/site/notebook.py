"""Conversion of a notebook to Markdown: text, code, and the output of the code."""

import base64
import re
from pathlib import Path
from typing import Any

import nbformat

COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def page(path: Path) -> str:
    """Return the complete notebook as Markdown; images are embedded."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(part for cell in cells for part in _cell(cell)) + "\n"


def _cell(cell: Any) -> list[str]:
    if cell.cell_type != "code":
        return [cell.source]
    return [_fence("python", cell.source), *(_output(output) for output in cell.outputs)]


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return _fence("text", output.text)
    if output.output_type == "error":
        return _fence("text", "\n".join(output.traceback))
    data = output.data
    if "image/png" in data:
        return _image("image/png", "".join(data["image/png"].split()))
    if "image/svg+xml" in data:
        return _image("image/svg+xml", base64.b64encode(data["image/svg+xml"].encode()).decode())
    return _fence("text", data["text/plain"])


def _image(kind: str, encoded: str) -> str:
    return f"![output of the code above](data:{kind};base64,{encoded})"


def _fence(language: str, text: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    clean = COLOURS.sub("", text).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", clean)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{clean}\n{ticks}"
