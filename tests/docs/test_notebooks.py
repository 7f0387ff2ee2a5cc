"""Every notebook runs from its first cell to its last, and becomes a page of the site."""

import base64
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.docs.blocks import ROOT
from tools.notebooks import cleaned, execute
from tools.site import notebook

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
MAX_BYTES = 300_000
MACHINE_PATHS = re.compile(r"/(?:tmp|home|root|usr|work)/|site-packages")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a kernel import this source of fedgh, with one thread as in a run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs(path: Path, tmp_path: Path) -> None:
    execute(path, tmp_path)


def test_a_notebook_with_a_failing_cell_raises(tmp_path: Path) -> None:
    broken = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("assert x == 2, 'no'")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(Exception, match="AssertionError"):
        execute(tmp_path / "broken.ipynb", tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_output_and_without_machine_paths(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < MAX_BYTES
    assert not MACHINE_PATHS.search(text)
    cells = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert cells[-1].outputs


def test_warnings_and_times_are_removed() -> None:
    outputs = [new_output("stream", name="stderr", text="no!"), new_output("stream", text="yes")]
    notebook = new_notebook(cells=[new_code_cell("x", outputs=outputs, metadata={"time": 1})])
    (cell,) = cleaned(notebook).cells
    assert [output.text for output in cell.outputs] == ["yes"]
    assert cell.metadata == {}


def test_text_code_and_output_of_a_notebook_become_markdown(tmp_path: Path) -> None:
    picture = base64.b64encode(b"pixels").decode()
    outputs = [
        new_output("stream", text="\x1b[1mbold\x1b[0m\n"),
        new_output("display_data", data={"image/png": picture + "\n", "text/plain": "<Figure>"}),
        new_output("display_data", data={"image/svg+xml": "<svg/>", "text/plain": "<Chart>"}),
        new_output("execute_result", data={"text/html": "<b>4</b>", "text/plain": "```4"}),
    ]
    cells = [new_markdown_cell("# Title\n\nwords"), new_code_cell("2 + 2", outputs=outputs)]
    nbformat.write(new_notebook(cells=cells), tmp_path / "tour.ipynb")
    assert notebook.page(tmp_path / "tour.ipynb").split("\n\n") == [
        "# Title",
        "words",
        "```python\n2 + 2\n```",
        "```text\nbold\n```",
        f"![output of the code above](data:image/png;base64,{picture})",
        "![output of the code above](data:image/svg+xml;base64,PHN2Zy8+)",
        "````text\n```4\n````\n",
    ]
