"""The notebooks of the documents, run again and kept with what they put out.

`python -m tools.notebooks [NAME...]`. Nothing of this machine stays in them: no times, and none of
the warnings of its packages.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
PATIENCE = 240  # seconds for a cell; a busy machine may need many for what takes one


def execute(path: Path, folder: Path) -> Any:
    """The notebook after all its cells ran in a new kernel, in that folder.

    CellExecutionError says which one failed.
    """
    made = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(
        made, timeout=PATIENCE, kernel_name="python3", resources=place, record_timing=False
    ).execute()
    return made


def cleaned(made: Any) -> Any:
    """The same without what only this machine says."""
    made.metadata.pop("widgets", None)
    made.metadata.get("language_info", {}).pop("version", None)
    for cell in made.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return made


def main() -> None:
    """Run those that are named, or all."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as in a run: the same numbers
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(FOLDER.iterdir()):
        with TemporaryDirectory() as folder:
            nbformat.write(cleaned(execute(path, Path(folder))), path)
        print(path.name)


if __name__ == "__main__":
    main()
