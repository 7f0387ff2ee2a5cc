"""A real federation goes on after its certificates were renewed and its run was restored."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from fedgh.flower import preflight
from fedgh.flower.deployment import Deployment, deployed, follow
from fedgh.flower.keys import write_key_pair
from fedgh.flower.renewal import renew
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.real import federation, last_states, running_processes_of, two, wait_until
from tests.support.states import states
from tests.support.tiny import numbers


def script(deployment: Deployment, name: str, *arguments: str) -> str:
    """Run a script of the operator, and return its output."""
    done = subprocess.run(
        ["sh", str(deployment.folder.server / name), *arguments],
        env=deployment.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    return done.stdout


def assert_keys_can_be_revoked(deployment: Deployment, scratch: Path) -> None:
    """Register the key of another client 9 with register.sh, and revoke it with revoke.sh."""
    server = deployment.folder.server
    client = Path(shutil.copytree(deployment.folder.participant(0), scratch / "9"))
    write_key_pair(client / "key", client / "key.pub")
    shutil.copy(client / "key.pub", server / "participants" / "9.pub")

    def known() -> bool:
        address = deployment.environment()["FEDGH_SUPERLINK"]
        found = {one.check: one for one in preflight.check(client, address, trial=False)}
        return found["registration"].status == "ok"

    assert not known()
    assert "participants/9.pub: registered as node " in script(deployment, "register.sh")
    assert known()
    assert "participants/9.pub: registered already" in script(deployment, "register.sh")
    script(deployment, "revoke.sh", "9")
    assert not known()
    assert "9.pub: this key was registered before; if it was revoked" in script(
        deployment, "register.sh"
    )
    assert not known()
    (server / "participants" / "9.pub").unlink()


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("deployment")
def test_a_federation_continues_with_new_certificates_and_a_restored_run(tmp_path: Path) -> None:
    experiment = two("federation.rounds=3", "run.deadline=120")
    straight = loop.run(experiment, tmp_path / "serial")
    folder = federation(tmp_path / "federation", experiment)
    out, backup = folder.path / "run", tmp_path / "backup"
    with deployed(folder, 2, print) as deployment:
        deployment.train(out)
        wait_until(lambda: RunFolder(out).records())
        shutil.copytree(out / "checkpoint", backup / "checkpoint")
        rest = shutil.ignore_patterns("checkpoint")
        shutil.copytree(out, backup, dirs_exist_ok=True, ignore=rest)
    assert 1 <= RunFolder(backup).committed()[0] < 3
    shutil.rmtree(out)
    shutil.copytree(backup, out)
    renew(folder, replace_authority=True, secret=True)

    with deployed(folder, 2, print) as deployment:
        server = deployment.environment()["FEDGH_SUPERLINK"]
        found = list(preflight.check(folder.participant(0), server, trial=False))
        assert [one for one in found if one.status == "failed"] == []
        assert_keys_can_be_revoked(deployment, tmp_path)
        # For a while a new SuperLink takes a run of the ended one for active.
        answer = script(deployment, "resume.sh", str(out))
        for _ in range(30):
            if "{" in answer:
                break
            assert "a run is active" in answer
            time.sleep(2)
            answer = script(deployment, "resume.sh", str(out))
        run = int(json.loads(answer[answer.index("{") :])["run-id"])
        assert "a run is active" in script(deployment, "resume.sh", str(out))
        finished = follow(deployment, run, out, lambda _: None)
        assert "is finished" in script(deployment, "resume.sh", str(out))
    assert running_processes_of(folder.path) == []
    assert numbers(finished) == numbers(straight)
    assert last_states(folder, finished) == states(straight)
