"""Participants and servers that lie, on a real SuperLink: honest ones do not notice."""

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
from tests.flower.hostile.questions import PRIVATE, Question, questions
from tests.flower.real import federation, last_states, left_behind, two, wait_until
from tests.support.tiny import numbers, states

HOSTILE = Path(__file__).parent / "hostile"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("deployment"),  # two federations at a time miss deadlines
]

# What is recorded of an attack. Only what is rejected is a strike.

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
"""By client and round."""

STRIKES = 6
HOSTILE_ROUNDS = ["federation.clients=3", "federation.rounds=7", f"run.strikes={STRIKES}"]


def hostile(folder: FederationFolder, client: int, attacks: list[str]) -> None:
    """Let a participant do so in each round."""
    own = folder.participant(client)
    shutil.copy(HOSTILE / "participant.py", own / "hostile.py")
    with (own / "node.conf").open("a") as settings:
        settings.write(f'app="hostile:app"\nattacks="{",".join(attacks)}"\n')


def asked(folder: FederationFolder, client: int) -> list[int]:
    """The rounds in which a hostile participant was asked."""
    return [int(line) for line in (folder.participant(client) / "asked.txt").read_text().split()]


def refusals(record: Round) -> dict[tuple[int, int], Reply]:
    """What the server has made of what was no good."""
    found = [Reply(x.client, record.round, error=x.reason) for x in record.failed]
    found += [Reply(x.client, record.round, invalid=x.reason) for x in record.rejected]
    return {(reply.client_id, reply.round): reply for reply in found}


def assert_explained(attack: str, refused: Reply) -> None:
    """Rejected or failed, for the right reason, in harmless words."""
    reason = refused.invalid if attack in REJECTED else refused.error
    assert reason is not None, attack
    assert re.search({**REJECTED, **FAILED}[attack], reason), attack
    assert reason.isprintable()
    assert len(reason) <= MAX_TEXT


def test_hostile_participants_cost_the_honest_one_nothing_but_time(tmp_path: Path) -> None:
    folder = federation(tmp_path / "federation", two(*HOSTILE_ROUNDS))
    for client, attacks in ATTACKS.items():
        hostile(folder, client, attacks)
    out, began = tmp_path / "run", time.monotonic()
    with deployed(folder, 3, print) as deployment:
        deadline = max(40.0, 2 * (time.monotonic() - began))  # on a busy machine all take longer
        experiment = two(*HOSTILE_ROUNDS, f"run.deadline={deadline}")
        folder.experiment.write_text(experiment.config.to_toml())
        run = follow(deployment, deployment.train(out), out, lambda _: None)
    assert left_behind(folder.path) == []

    records = run.records()
    refused = {key: reply for record in records for key, reply in refusals(record).items()}
    assert {client for client, _ in refused} == ATTACKS.keys()
    for client, attacks in ATTACKS.items():
        for round, attack in enumerate(attacks, start=1):
            assert_explained(attack, refused[client, round])
        assert asked(folder, client) == list(range(1, len(attacks) + 1))
    assert [record.excluded for record in records] == [[]] * (STRIKES - 1) + [[1], [1]]
    for record in records:
        assert record.accuracies[1:] == [None, None]
        assert record.seconds["train"] < 2 * deadline

    straight = loop.run(experiment, tmp_path / "serial", make_engine=with_replies(refused))
    assert numbers(run) == numbers(straight)
    assert last_states(folder, run) == states(straight)


# A hostile server. Its participants have a ledger with room for the honest run that comes after.

PATIENT = "patient_17"
"""A name that is in a participant's files."""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A folder with a network that a participant has for something else."""
    folder = tmp_path / "network"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    save_file({PATIENT: torch.ones(3)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def seen(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is written down what participants' processes do."""
    for name in ("witness", "temporary"):
        (tmp_path / name).mkdir()
    shutil.copy(HOSTILE / "witness.py", tmp_path / "witness" / "sitecustomize.py")
    paths = [str(tmp_path / "witness"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for name in ("TMPDIR", "FEDGH_DATA"):
        monkeypatch.setenv(name, str(tmp_path / "temporary"))
    monkeypatch.setenv("FORBIDDEN", os.pathsep.join(["/etc/passwd", str(network)]))
    monkeypatch.setenv("WITNESS", str(tmp_path / "seen.txt"))
    return tmp_path / "seen.txt"


def ask_all(
    deployment: Deployment, asked: dict[str, Question], place: Path
) -> dict[str, dict[str, Any]]:
    """What participants answer to a hostile server that asks them in turn."""
    folder, app = deployment.folder, place / "app"
    app.mkdir(parents=True)
    for name in ("server.py", "evil.py"):
        shutil.copy(HOSTILE / name, app)
    honest = (folder.server / "app" / "pyproject.toml").read_text()
    other = honest.replace("fedgh.flower.server:app", "server:app").replace("[]", '["evil"]')
    (app / "pyproject.toml").write_text(other + 'questions = ""\nanswers = ""\n')
    told = {
        "nodes": [read_public_key(folder.keys / f"{client}.pub").hex() for client in range(2)],
        "questions": [
            {
                "name": name,
                "client": number % 2,
                "head": question.head(number % 2).hex(),
                "payload": question.payload and question.payload.hex(),
            }
            for number, (name, question) in enumerate(asked.items())
        ],
    }
    (place / "questions.json").write_text(json.dumps(told))
    settings = f'questions="{place}/questions.json" answers="{place}/answers.json"'
    deployment.flwr("run", str(app), "federation", "--run-config", settings)
    wait_until((place / "answers.json").exists, seconds=600)
    found: dict[str, dict[str, Any]] = json.loads((place / "answers.json").read_text())
    return found


def assert_refused(question: Question, answer: dict[str, Any]) -> None:
    """No upload, and no word that the server did not know."""
    assert not answer["uploads"]
    if question.refusal is None:
        assert answer["error"] is None
        assert 0 <= answer["metrics"]["accuracy"] <= 1
    else:
        assert re.search(question.refusal, answer["error"])
        assert answer["metrics"] == {}
    words = json.dumps(answer)
    assert PATIENT not in words
    assert paths_in(words) <= paths_in(question.head(0).decode(errors="replace"))


def paths_in(text: str) -> set[str]:
    return set(re.findall(r"/[\w./-]+", text))


def own_files(folder: FederationFolder) -> dict[Path, bytes]:
    """What participants have beside their states and what Flower keeps."""
    own = [path for path in folder.participants.glob("*/*") if path.name not in ("states", "flwr")]
    return {path: path.read_bytes() for path in own}


def assert_kept_to_themselves(folder: FederationFolder, seen: Path) -> None:
    """Participants reached this machine only, read nothing else, and wrote where they may."""
    lines = [line.partition(" ") for line in set(seen.read_text().splitlines())]
    assert {where for what, _, where in lines if what == "reach"} == {"127.0.0.1"}
    assert [where for what, _, where in lines if what == "read"] == []
    allowed = [Path(os.devnull), seen.parent / "temporary"]
    allowed += [own / name for own in folder.participants.iterdir() for name in ("states", "flwr")]
    written = [Path(where) for what, _, where in lines if what == "write"]
    assert [path for path in written if not any(map(path.is_relative_to, allowed))] == []
    kept = {path.name for path in folder.participants.glob("*/states/*")}
    assert kept == {"experiments", "privacy.json", "privacy.lock"}


def test_a_hostile_server_learns_nothing_and_an_honest_one_what_it_always_does(
    network: Path, seen: Path, tmp_path: Path
) -> None:
    experiment = two(*PRIVATE)
    privacy = experiment.privacy
    assert privacy is not None
    noise, delta = privacy.noise_multiplier, experiment.config.privacy.delta
    bound = round(epsilon_of(3 * noise**-2, delta), 3) + 0.01
    folder = federation(tmp_path / "federation", experiment, f"max-epsilon={bound}")
    homes = [folder.participant(client) / "states" for client in range(2)]
    ledgers = [Ledger(home / "privacy.json", bound, delta) for home in homes]
    for home, ledger in zip(homes, ledgers, strict=True):
        home.mkdir()
        ledger.spend(noise)
    pages = [ledger.path.read_bytes() for ledger in ledgers]
    files = own_files(folder)
    asked = questions(network)

    with deployed(folder, 2, print) as deployment:
        answers = ask_all(deployment, asked, tmp_path / "hostile")
        assert [ledger.path.read_bytes() for ledger in ledgers] == pages
        out = tmp_path / "run"
        run = follow(deployment, deployment.train(out), out, lambda _: None)
    assert left_behind(folder.path) == []

    assert answers.keys() == asked.keys()
    for name, question in asked.items():
        assert_refused(question, answers[name])
    assert list(tmp_path.rglob("evil-was-here")) == []
    assert own_files(folder) == files
    assert_kept_to_themselves(folder, seen)

    straight = loop.run(experiment, tmp_path / "serial")
    assert numbers(run) == numbers(straight)
    assert last_states(folder, run) == states(straight)
    for ledger in ledgers:
        assert json.loads(ledger.path.read_text())["releases"] == 3
        with pytest.raises(OverBoundError):
            ledger.spend(noise)
