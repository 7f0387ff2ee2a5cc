"""Two small runs, shared by the tests of reports, on data whose class names contain HTML."""

from pathlib import Path

import numpy as np
import pytest

from fedgh import config
from fedgh.runs.read import NamedRun, name_runs
from fedgh.trained import confusion
from fedgh.training import loop
from fedgh.training.experiment import prepare
from fedgh.trust import OWN
from tests.report.parts import HOSTILE
from tests.support.tiny import QUICK

NAMES = [HOSTILE, "<b>", 'a & "b"', "d'e", "ü{{1}}", "f"]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Finished runs of FedGH and Standalone.

    They are shared: a test that writes into a folder must copy it first.
    """
    base = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    y = np.arange(240) % len(NAMES)
    x = (rng.normal(size=(6, 5))[y] + rng.normal(size=(240, 5))).astype(np.float32)
    np.savez(base / "data.npz", x=x, y=np.array(NAMES)[y])
    data = ["data.name=npz", f"data.path={base / 'data.npz'}", "data.classes_per_client=3"]
    for method in ("fedgh", "standalone"):
        options = [*QUICK, *data, f"method.name={method}", "federation.target=0.3"]
        confusion.measure(loop.run(prepare(config.load("demo", options)), base / method), trust=OWN)
    return [base / "fedgh", base / "standalone"]


@pytest.fixture(scope="session")
def runs(folders: list[Path]) -> list[NamedRun]:
    """The runs of `folders`, as a report reads them."""
    return name_runs(folders)
