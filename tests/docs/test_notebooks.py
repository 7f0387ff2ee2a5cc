"""Every notebook runs from its first cell to its last, and is shown in the site."""

import base64
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.docs.blocks import ROOT
from tools.site import notebook

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PATIENCE = 240  # seconds for a cell; a busy machine may need many for what takes one


def run(path: Path, folder: Path) -> None:
    """All cells in a new kernel, in that folder; CellExecutionError says which one failed."""
    cells = nbformat.read(path, as_version=4)
    NotebookClient(
        cells, timeout=PATIENCE, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel imports the fedgh that is tested, with one thread as in a run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs(path: Path, tmp_path: Path) -> None:
    run(path, tmp_path)


def test_a_notebook_that_fails_is_noticed(tmp_path: Path) -> None:
    broken = new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("assert x == 2, 'no'")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(Exception, match="AssertionError"):
        run(tmp_path / "broken.ipynb", tmp_path)


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
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
        f"![what the code above has drawn](data:image/png;base64,{picture})",
        "![what the code above has drawn](data:image/svg+xml;base64,PHN2Zy8+)",
        "````text\n```4\n````\n",
    ]
