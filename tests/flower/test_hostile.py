"""Malicious clients and a malicious server on a real SuperLink: honest parties are not affected."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedgh.core.records import Round
from fedgh.core.types import Reply
from fedgh.errors import MAX_TEXT
from fedgh.flower.deployment import Deployment, deployed, follow
from fedgh.flower.folder import FederationFolder
from fedgh.flower.keys import read_public_key
from fedgh.privacy.accounting import epsilon_of
from fedgh.privacy.ledger import Ledger, OverBoundError
from fedgh.training import loop
from tests.flower.absent import with_replies
from tests.flower.hostile.questions import PRIVATE, HostileRequest, hostile_requests
from tests.flower.real import federation, last_states, running_processes_of, two, wait_until
from tests.support.states import states
from tests.support.tiny import numbers

HOSTILE = Path(__file__).parent / "hostile"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("deployment"),  # two federations at a time miss deadlines
]

# The reason that the server records for each attack. Only a rejected upload counts as a strike.

REJECTED = {
    "nothing": "^not a message of fedgh$",
    "garbage": r"^not a readable message \(DecodeError\)$",
    "garbage-upload": "^not a readable message",
    "nan": "^'means' has values that are not finite$",
    "huge": r"^'means' has a row of norm 4e\+30, above 1000$",
    "wrong-shape": r"^'means' has shape \(10, 7\)",
    "other-names": "^expected tensors .* got .*extractor",
    "another-client": "^an answer of client 0 in round",
    "another-round": "^an answer of client 2 in round 77$",
    "wonderful": "^an impossible value of accuracy$",
    "bomb": r"^an array of \d+ bytes in a reply that may have \d+$",
}
FAILED = {
    "words": r"^\[2J accuracy 99.9% x{100}",
    "silent": r"^no answer within [\d.]+ s$",
}
ATTACKS = {
    1: ["nothing", "garbage-upload", "nan", "huge", "wrong-shape", "other-names"],
    2: ["garbage", "words", "another-client", "another-round", "wonderful", "bomb", "silent"],
}
"""Attacks of each malicious client, one per round."""

STRIKES = 6
HOSTILE_ROUNDS = ["federation.clients=3", "federation.rounds=7", f"run.strikes={STRIKES}"]


def make_malicious(folder: FederationFolder, client: int, attacks: list[str]) -> None:
    """Give a client the malicious app, with one attack per round."""
    own = folder.participant(client)
    shutil.copy(HOSTILE / "participant.py", own / "hostile.py")
    with (own / "node.conf").open("a") as settings:
        settings.write(f'app="hostile:app"\nattacks="{",".join(attacks)}"\n')


def rounds_of(folder: FederationFolder, client: int) -> list[int]:
    """Return the rounds in which a malicious client received a request."""
    return [int(line) for line in (folder.participant(client) / "rounds.txt").read_text().split()]


def bad_replies(record: Round) -> dict[tuple[int, int], Reply]:
    """Return the failed and rejected replies of a round, by client and round."""
    replies = [Reply(x.client, record.round, error=x.reason) for x in record.failed]
    replies += [Reply(x.client, record.round, invalid=x.reason) for x in record.rejected]
    return {(reply.client_id, reply.round): reply for reply in replies}


def assert_recorded(attack: str, reply: Reply) -> None:
    """Check that an attack was rejected or failed, for the right reason, in printable text."""
    reason = reply.invalid if attack in REJECTED else reply.error
    assert reason is not None, attack
    assert re.search({**REJECTED, **FAILED}[attack], reason), attack
    assert reason.isprintable()
    assert len(reason) <= MAX_TEXT


def test_malicious_clients_do_not_change_the_result_of_an_honest_one(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two(*HOSTILE_ROUNDS))
    for client, attacks in ATTACKS.items():
        make_malicious(folder, client, attacks)
    out, began = tmp_path / "run", time.monotonic()
    with deployed(folder, 3, print) as deployment:
        deadline = max(40.0, 2 * (time.monotonic() - began))  # a busy machine takes longer
        experiment = two(*HOSTILE_ROUNDS, f"run.deadline={deadline}")
        folder.experiment.write_text(experiment.config.to_toml())
        run = follow(deployment, deployment.train(out), out, lambda _: None)
    assert running_processes_of(folder.path) == []

    records = run.records()
    replies = {key: reply for record in records for key, reply in bad_replies(record).items()}
    assert {client for client, _ in replies} == ATTACKS.keys()
    for client, attacks in ATTACKS.items():
        for round, attack in enumerate(attacks, start=1):
            assert_recorded(attack, replies[client, round])
        assert rounds_of(folder, client) == list(range(1, len(attacks) + 1))
    assert [record.excluded for record in records] == [[]] * (STRIKES - 1) + [[1], [1]]
    for record in records:
        assert record.accuracies[1:] == [None, None]
        assert record.seconds["train"] < 2 * deadline

    straight = loop.run(experiment, tmp_path / "serial", make_engine=with_replies(replies))
    assert numbers(run) == numbers(straight)
    assert last_states(folder, run) == states(straight)


# A malicious server. The clients' ledgers have enough privacy left for the honest run afterwards.

PATIENT = "patient_17"
"""A name in a client's files, which must not be revealed."""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A folder with a network of a client that has nothing to do with the federation."""
    folder = tmp_path / "network"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    save_file({PATIENT: torch.ones(3)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def access_log(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the clients' processes log file and network accesses."""
    for name in ("witness", "temporary"):
        (tmp_path / name).mkdir()
    shutil.copy(HOSTILE / "witness.py", tmp_path / "witness" / "sitecustomize.py")
    paths = [str(tmp_path / "witness"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for name in ("TMPDIR", "FEDGH_DATA"):
        monkeypatch.setenv(name, str(tmp_path / "temporary"))
    monkeypatch.setenv("FORBIDDEN", os.pathsep.join(["/etc/passwd", str(network)]))
    monkeypatch.setenv("WITNESS", str(tmp_path / "access.log"))
    return tmp_path / "access.log"


def ask_all(
    deployment: Deployment, requests: dict[str, HostileRequest], output: Path
) -> dict[str, dict[str, Any]]:
    """Run a malicious server that sends requests to the clients in turn; return their answers."""
    folder, app = deployment.folder, output / "app"
    app.mkdir(parents=True)
    for name in ("server.py", "evil.py"):
        shutil.copy(HOSTILE / name, app)
    honest = (folder.server / "app" / "pyproject.toml").read_text()
    malicious = honest.replace("fedgh.flower.server:app", "server:app").replace("[]", '["evil"]')
    (app / "pyproject.toml").write_text(malicious + 'questions = ""\nanswers = ""\n')
    plan = {
        "nodes": [read_public_key(folder.keys / f"{client}.pub").hex() for client in range(2)],
        "questions": [
            {
                "name": name,
                "client": number % 2,
                "json": request.json(number % 2).hex(),
                "payload": request.payload and request.payload.hex(),
            }
            for number, (name, request) in enumerate(requests.items())
        ],
    }
    (output / "questions.json").write_text(json.dumps(plan))
    settings = f'questions="{output}/questions.json" answers="{output}/answers.json"'
    deployment.flwr("run", str(app), "federation", "--run-config", settings)
    wait_until((output / "answers.json").exists, seconds=600)
    answers: dict[str, dict[str, Any]] = json.loads((output / "answers.json").read_text())
    return answers


def assert_refused(request: HostileRequest, answer: dict[str, Any]) -> None:
    """Check that an answer has no upload and no text that the server did not know."""
    assert not answer["uploads"]
    if request.refusal is None:
        assert answer["error"] is None
        assert 0 <= answer["metrics"]["accuracy"] <= 1
    else:
        assert re.search(request.refusal, answer["error"])
        assert answer["metrics"] == {}
    text = json.dumps(answer)
    assert PATIENT not in text
    assert paths_in(text) <= paths_in(request.json(0).decode(errors="replace"))


def paths_in(text: str) -> set[str]:
    return set(re.findall(r"/[\w./-]+", text))


def own_files(folder: FederationFolder) -> dict[Path, bytes]:
    """Return the content of the clients' files, without their states and Flower's files."""
    own = [path for path in folder.participants.glob("*/*") if path.name not in ("states", "flwr")]
    return {path: path.read_bytes() for path in own}


def assert_allowed_accesses(folder: FederationFolder, access_log: Path) -> None:
    """Check that clients connected to this machine only, and opened no forbidden file."""
    lines = [line.partition(" ") for line in set(access_log.read_text().splitlines())]
    assert {target for access, _, target in lines if access == "reach"} == {"127.0.0.1"}
    assert [target for access, _, target in lines if access == "read"] == []
    allowed = [Path(os.devnull), access_log.parent / "temporary"]
    allowed += [own / name for own in folder.participants.iterdir() for name in ("states", "flwr")]
    written = [Path(target) for access, _, target in lines if access == "write"]
    assert [path for path in written if not any(map(path.is_relative_to, allowed))] == []
    stored = {path.name for path in folder.participants.glob("*/states/*")}
    assert stored == {"experiments", "privacy.json", "privacy.lock"}


def test_a_malicious_server_gets_no_upload_and_an_honest_one_the_usual_result(
    network: Path, access_log: Path, tmp_path: Path
) -> None:
    experiment = two(*PRIVATE)
    privacy = experiment.privacy
    assert privacy is not None
    noise, delta = privacy.noise_multiplier, experiment.config.privacy.delta
    bound = round(epsilon_of(3 * noise**-2, delta), 3) + 0.01
    folder = federation(tmp_path / "federation", experiment, f"max-epsilon={bound}")
    state_folders = [folder.participant(client) / "states" for client in range(2)]
    ledgers = [Ledger(own / "privacy.json", bound, delta) for own in state_folders]
    for state_folder, ledger in zip(state_folders, ledgers, strict=True):
        state_folder.mkdir()
        ledger.spend(noise)
    balances = [ledger.path.read_bytes() for ledger in ledgers]
    files = own_files(folder)
    requests = hostile_requests(network)

    with deployed(folder, 2, print) as deployment:
        answers = ask_all(deployment, requests, tmp_path / "hostile")
        assert [ledger.path.read_bytes() for ledger in ledgers] == balances
        out = tmp_path / "run"
        run = follow(deployment, deployment.train(out), out, lambda _: None)
    assert running_processes_of(folder.path) == []

    assert answers.keys() == requests.keys()
    for name, request in requests.items():
        assert_refused(request, answers[name])
    assert list(tmp_path.rglob("evil-was-here")) == []
    assert own_files(folder) == files
    assert_allowed_accesses(folder, access_log)

    straight = loop.run(experiment, tmp_path / "serial")
    assert numbers(run) == numbers(straight)
    assert last_states(folder, run) == states(straight)
    for ledger in ledgers:
        assert json.loads(ledger.path.read_text())["releases"] == 3
        with pytest.raises(OverBoundError):
            ledger.spend(noise)
