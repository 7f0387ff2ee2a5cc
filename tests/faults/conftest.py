"""A driver for all tests here, and folders for its children to work in."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.faults.driver import Driver

MEMORY = Path("/dev/shm")
"""Where a sync costs nothing, if there is such a place."""


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    with Driver() as started:
        yield started


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Makes empty folders that anybody may enter."""
    home = Path(mkdtemp(prefix="fedgh-faults-", dir=MEMORY if MEMORY.is_dir() else tmp_path))
    home.chmod(0o755)
    made: list[Path] = []

    def make() -> Path:
        place = home / f"{len(made)}" / "place"
        place.mkdir(parents=True)
        made.append(place)
        return place

    yield make
    shutil.rmtree(home)
