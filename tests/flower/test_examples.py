"""The code of the deployment guide and of the hospital example works."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from fedgh import config
from fedgh.errors import import_object
from fedgh.flower import engine
from fedgh.training.experiment import prepare
from tests.flower.local import LocalFederation

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POLL", 0.0)
    for name in ("hospital", "clinic"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_hospital_example_trains_two_clients_with_different_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = ROOT / "examples" / "hospital"
    monkeypatch.syspath_prepend(str(example))
    apps = [import_object("hospital:app"), import_object("clinic:app")]
    experiment = prepare(config.load(example / "federation.toml"))
    run = LocalFederation(tmp_path / "federation", experiment, apps).run()
    summary = run.summary()
    assert summary is not None
    assert (summary.accuracy or 0) > 0.9
    assert all(not record.failed for record in run.records())


def test_the_code_of_the_deployment_guide_gives_a_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", guide, re.S | re.M)
    participant, use = re.findall(r"^```python\n(.*?)^```", guide, re.S | re.M)
    (tmp_path / "hospital.py").write_text(participant)
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = prepare(config.parse({**tomllib.loads(settings)}))
    federation = LocalFederation(
        tmp_path / "federation", experiment, settings={"app": "hospital:app"}
    )
    run = federation.run()
    assert (run.records()[-1].accuracy or 0) > 0.7
    monkeypatch.chdir(federation.path)
    namespace: dict[str, torch.nn.Module] = {}
    exec(compile(use, "deploy.md", "exec"), namespace)
    x = torch.randn(500, 30)
    right = namespace["model"](x).argmax(1) == (x[:, 0] > 0)
    assert right.float().mean() > 0.7
