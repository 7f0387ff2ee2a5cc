"""Fixtures: the driver of all fault tests, and folders for its child processes."""

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.faults.cases import Case, NewWorkdir
from tests.faults.driver import Driver

MEMORY = Path("/dev/shm")
"""Folder in memory, where a sync costs nothing; not on every system."""


@pytest.fixture(scope="session")
def new_workdir() -> Iterator[NewWorkdir]:
    """A function that makes empty folders that every user may read."""
    root = Path(mkdtemp(prefix="fedgh-faults-", dir=MEMORY if MEMORY.is_dir() else None))
    root.chmod(0o755)
    numbers = count()

    def make() -> Path:
        workdir = root / str(next(numbers)) / "workdir"
        workdir.mkdir(parents=True)
        return workdir

    yield make
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def case_of(new_workdir: NewWorkdir) -> Iterator[Callable[[str], Case]]:
    with Driver() as driver:
        yield cache(lambda name: Case(name, driver, new_workdir))


@pytest.fixture
def case(request: pytest.FixtureRequest, case_of: Callable[[str], Case]) -> Case:
    """The case that a test names as its parameter, by default a plain run."""
    return case_of(getattr(request, "param", "run"))
