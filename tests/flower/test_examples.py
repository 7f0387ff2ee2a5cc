"""The code of the deployment guide and of the examples works."""

import csv
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedgh import config
from fedgh.errors import import_object
from fedgh.flower import engine
from fedgh.training.experiment import prepare
from tests.flower.local import LocalFederation
from tests.flower.real import running_processes_of
from tests.support.commands import inside

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def fresh_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.0)
    for name in ("hospital", "clinic"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_hospital_example_trains_two_clients_with_different_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES / "hospital"
    monkeypatch.syspath_prepend(str(example))
    apps = [import_object("hospital:app"), import_object("clinic:app")]
    experiment = prepare(config.load(example / "federation.toml"))
    run = LocalFederation(tmp_path / "federation", experiment, apps).run()
    summary = run.summary()
    assert summary is not None
    assert (summary.accuracy or 0) > 0.9
    assert all(not record.failed for record in run.records())


def test_the_code_and_commands_of_the_deployment_guide_give_a_model_that_predicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", guide, re.S | re.M)
    (participant,) = re.findall(r"^```python\n(.*?)^```", guide, re.S | re.M)
    (tmp_path / "hospital.py").write_text(participant)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = prepare(config.parse({**tomllib.loads(settings)}))
    federation = LocalFederation(
        tmp_path / "federation", experiment, settings={"app": "hospital:app"}
    )
    run = federation.run()
    assert (run.records()[-1].accuracy or 0) > 0.7

    monkeypatch.chdir(federation.path)
    Path("node.conf").write_text('client=0\nstate="states"\napp="hospital:app"\n')
    x = np.random.default_rng(0).normal(size=(500, 30)).astype(np.float32)
    np.save("patients.npy", x)
    commands = re.findall(r"^\$ fedgh (flower (?:predict|export) .*?)(?: +#.*)?$", guide, re.M)
    assert len(commands) == 2
    for command in commands:
        assert inside(monkeypatch, *shlex.split(command)) == 0
    with open("said.csv", newline="") as file:  # noqa: PTH123 - as a reader of the guide would
        predicted = np.array([row["class"] == "benign" for row in csv.DictReader(file)])
    assert (predicted == (x[:, 0] > 0)).mean() > 0.7
    assert Path("export/client-0.onnx").exists()


@pytest.mark.faults
@pytest.mark.xdist_group("deployment")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["hospital", "three-sites"])
def test_the_rehearsal_of_an_example_succeeds(name: str, tmp_path: Path) -> None:
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    folder = tmp_path / "federation"
    done = subprocess.run(
        ["sh", str(EXAMPLES / name / "rehearse.sh"), str(folder)],
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"^accuracy +([\d.]+)%", done.stdout, re.M)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 80
    assert running_processes_of(folder) == []
    if name == "three-sites":
        assert "new images are classified correctly, also by" in done.stdout
