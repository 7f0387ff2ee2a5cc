"""A small run on images, shared by the tests of the audit."""

from pathlib import Path

import pytest

from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.support.tiny import quick


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of five clients in which two clients have each class.

    It is shared: a test that writes into the folder must copy it first.
    """
    path: Path = tmp_path_factory.mktemp("audit") / "run"
    return loop.run(quick("data.classes_per_client=4"), path)
