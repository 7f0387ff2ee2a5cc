"""A small run on images that the tests of the audit share."""

from pathlib import Path

import pytest

from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.support.tiny import quick


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Five clients, each class with two of them. To be read; a test that writes takes a copy."""
    path: Path = tmp_path_factory.mktemp("audit") / "run"
    return loop.run(quick("data.classes_per_client=4"), path)
