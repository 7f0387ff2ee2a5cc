"""Two small runs, shared by the tests of reports, on data whose class names contain HTML."""

from pathlib import Path

import numpy as np
import pytest

from fedgh import config
from fedgh.runs.read import NamedRun, name_runs
from fedgh.studies.sweep import plan_comparison, run_trials
from fedgh.studies.sweep_folder import write
from fedgh.trained import confusion
from fedgh.training import loop
from fedgh.training.experiment import prepare
from fedgh.trust import OWN
from tests.report.parts import HOSTILE
from tests.support.tiny import QUICK

NAMES = [HOSTILE, "<b>", 'a & "b"', "d'e", "ü{{1}}", "f"]


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings of the runs, with their data in a file."""
    file = tmp_path_factory.mktemp("data") / "data.npz"
    rng = np.random.default_rng(0)
    y = np.arange(240) % len(NAMES)
    x = (rng.normal(size=(6, 5))[y] + rng.normal(size=(240, 5))).astype(np.float32)
    np.savez(file, x=x, y=np.array(NAMES)[y])
    data = ["data.name=npz", f"data.path={file}", "data.classes_per_client=3"]
    return [*QUICK, *data, "federation.target=0.3"]


@pytest.fixture(scope="session")
def sweep(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison of three methods over two seeds, and of one without a result.

    It is shared: a test that writes into it must copy it first.
    """
    folder = tmp_path_factory.mktemp("sweep")
    trials = plan_comparison("demo", "fedgh,standalone,fedgh:server_lr=0", [0, 1], options)
    found = run_trials(trials, folder, missing={"fedavg": HOSTILE, "fml": HOSTILE})
    write(folder, "comparison", found, {"reference": "fedgh", "last": 1, "seeds": [0, 1]})
    return folder


@pytest.fixture(scope="session")
def folders(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Finished runs of FedGH and Standalone.

    They are shared: a test that writes into a folder must copy it first.
    """
    base = tmp_path_factory.mktemp("runs")
    for method in ("fedgh", "standalone"):
        loaded = config.load("demo", [*options, f"method.name={method}"])
        confusion.measure(loop.run(prepare(loaded), base / method), trust=OWN)
    return [base / "fedgh", base / "standalone"]


@pytest.fixture(scope="session")
def runs(folders: list[Path]) -> list[NamedRun]:
    """The runs of `folders`, as a report reads them."""
    return name_runs(folders)
