"""Run the notebooks of the documentation, and store them with their output.

`python -m tools.notebooks [NAME...]`. The stored output does not depend on this machine: execution
times and warnings of packages are removed.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
TIMEOUT = 240  # seconds for a cell; far more than needed, because the machine may be busy


def execute(path: Path, folder: Path) -> Any:
    """Run all cells of a notebook in a new kernel, in that folder, and return the notebook.

    Raise CellExecutionError, which names the cell, if one fails.
    """
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", resources=resources, record_timing=False
    ).execute()
    return notebook


def cleaned(notebook: Any) -> Any:
    """Remove versions, times and warnings of this machine from a notebook, and return it."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main() -> None:
    """Run the notebooks named on the command line, or all."""
    os.environ["OMP_NUM_THREADS"] = "1"  # one thread as in a run, so that numbers are the same
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(FOLDER.iterdir()):
        with TemporaryDirectory() as folder:
            nbformat.write(cleaned(execute(path, Path(folder))), path)
        print(path.name)


if __name__ == "__main__":
    main()
