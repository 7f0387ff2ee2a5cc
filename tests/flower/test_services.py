"""The files for systemd and Docker that `fedgh flower init` writes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedgh.flower.folder import FederationFolder
from tests.flower.real import two

yaml: Any = pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    path = tmp_path_factory.mktemp("a folder") / "f"
    return FederationFolder.create(path, two().config, host="fed.example.org")


def units(folder: FederationFolder) -> list[Path]:
    sides = (folder.server, folder.participant(0))
    return sorted(unit for side in sides for unit in (side / "services").glob("*@.service"))


def test_the_units_name_scripts_that_exist(folder: FederationFolder) -> None:
    assert len(units(folder)) == 5
    for unit in units(folder):
        text = unit.read_text()
        assert "@HARDENING@" not in text
        assert "NoNewPrivileges=yes" in text
        (start,) = [line for line in text.splitlines() if line.startswith("ExecStart=")]
        if "/bin/sh" in start:
            here = folder.participant(0) if "node" in unit.name else folder.path
            assert (here / start.split()[1]).is_file()


def test_systemd_accepts_the_units(folder: FederationFolder) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    timer = folder.server / "services" / "fedgh-resume@.timer"
    for unit in [*units(folder), timer]:
        instance = unit.with_name(unit.name.replace("@.", "@srv-fedgh-federation."))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(instance)],
            env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder.server / 'services'}:"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = done.stderr.splitlines()
        assert [line for line in lines if "/usr/sbin/nginx is not executable" not in line] == []


@pytest.mark.parametrize("side", ["server", "participants/0"])
def test_the_compose_files_start_scripts_that_exist(folder: FederationFolder, side: str) -> None:
    """Without a Docker engine: the files are parsed, and compared with the folder."""
    services = folder.path / side / "services"
    content: dict[str, Any] = yaml.safe_load((services / "compose.yaml").read_text())
    for name, service in content["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["restart"] == "unless-stopped"
        assert ("build" in service) or content["services"]["network"]["image"] == service["image"]
        if service["command"].startswith("sh "):
            (outside, inside) = service["volumes"][0].split(":")
            assert inside in (services / "Dockerfile").read_text(), "the working directory"
            assert (services / outside / service["command"].split()[1]).is_file()
    instructions = [line.split()[0] for line in dockerfile_lines(services / "Dockerfile")]
    assert instructions[0] == "FROM"
    assert set(instructions) == {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}


def dockerfile_lines(path: Path) -> list[str]:
    text = path.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]
