"""The built wheel runs outside the checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_a_built_wheel_runs_outside_the_checkout(tmp_path: Path) -> None:
    def call(*words: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, **env},
            text=True,
            capture_output=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    wheel = next(tmp_path.glob("fedgh-*.whl"))
    site = tmp_path / "site"
    call("-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    where = call("-c", "import fedgh; print(fedgh.__file__)", PYTHONPATH=str(site))
    assert where.startswith(str(site))
    assert (site / "fedgh" / "py.typed").exists()
    out = call(
        *("-m", "fedgh", "run", "--set", "federation.rounds=1", "--set", "model.extractors=cnn5"),
        *("--set", "local.batch_size=64", "--workers", "2"),
        PYTHONPATH=str(site),
    )
    assert "run folder runs/demo" in out
    assert "report     runs/demo/report.html" in out
    assert "cifar100-hetero" in call("-m", "fedgh", "list", "experiments", PYTHONPATH=str(site))
