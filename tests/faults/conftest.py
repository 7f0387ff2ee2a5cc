"""A driver for all tests here, and folders for its children to work in."""

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
"""Where a sync costs nothing, if there is such a workdir."""


@pytest.fixture(scope="session")
def new_workdir() -> Iterator[NewWorkdir]:
    """Makes empty folders that anybody may enter."""
    home = Path(mkdtemp(prefix="fedgh-faults-", dir=MEMORY if MEMORY.is_dir() else None))
    home.chmod(0o755)
    numbers = count()

    def make() -> Path:
        workdir = home / str(next(numbers)) / "workdir"
        workdir.mkdir(parents=True)
        return workdir

    yield make
    shutil.rmtree(home)


@pytest.fixture(scope="session")
def case_of(new_workdir: NewWorkdir) -> Iterator[Callable[[str], Case]]:
    with Driver() as driver:
        yield cache(lambda name: Case(name, driver, new_workdir))


@pytest.fixture
def case(request: pytest.FixtureRequest, case_of: Callable[[str], Case]) -> Case:
    """The one that a test names as its parameter; else a plain run."""
    return case_of(getattr(request, "param", "run"))
