"""Stored answers: a client answers a repeated request with the same bytes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, MessageType

from fedgh import __version__
from fedgh.core import wire
from fedgh.core.types import Recipient, Reply
from fedgh.engines.host import Blueprint
from fedgh.flower import NodeConfig, client, messages
from fedgh.flower.client import MakeBlueprint
from fedgh.flower.grid import LocalGrid
from fedgh.runs.checkpoint import ClientFiles
from fedgh.training.experiment import Experiment
from tests.support.tiny import quick

Ask = Callable[..., Reply]

EXPERIMENT = quick("privacy.protects=sample", "privacy.epsilon=4")
HEADER = EXPERIMENT.initial_server()
DOWN = wire.to_bytes(HEADER)
OTHER = wire.to_bytes({name: tensor + 0.1 for name, tensor in HEADER.items()})


def unpredictable_client(*_: object, of: Experiment = EXPERIMENT) -> Blueprint:
    """Return the blueprint of clients with noise that cannot be repeated."""
    blueprint = of.blueprint()
    assert blueprint.privacy is not None
    return replace(blueprint, privacy=replace(blueprint.privacy, unpredictable=True))


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """A function that requests a round from client 0, from the state of the round before."""
    LocalGrid({})  # sets the identity of this process, which Flower puts into messages

    def asked(
        round: int,
        *,
        down: bytes = DOWN,
        start: int = 1,
        make: MakeBlueprint = unpredictable_client,
        **changes: Any,
    ) -> Reply:
        fields: dict[str, Any] = {
            "version": __version__,
            "torch": torch.__version__,
            "experiment": "e",
            "client": 0,
            "trained": round - 1,
            "committed": 0,
            "settled": 0,
            "evaluate": True,
            "evaluate_globally": True,
            "deadline": 60.0,
            "settings": {},
            "fingerprint": None,
        }
        request = messages.Request(**{**fields, "round": round, "start": start, **changes})
        message = Message(
            messages.pack_request(request, down), dst_node_id=1, message_type=MessageType.TRAIN
        )
        node: NodeConfig = {
            "client": 0,
            "state": str(tmp_path),
            "max-epsilon": 100.0,
            "max-rounds-kept": 5,
        }
        return client.answer(message, node, make)

    return asked


def releases(tmp_path: Path) -> int:
    """Return the number of releases in the client's ledger."""
    found: int = json.loads((tmp_path / "privacy.json").read_text())["releases"]
    return found


def test_a_repeated_request_gets_the_same_bytes_without_a_new_release(
    ask: Ask, tmp_path: Path
) -> None:
    """This holds for another start of the server and for another deadline, too."""
    replies = [ask(1, start=start, deadline=50.0 + start) for start in (1, 1, 2, 2)]
    assert replies[0].up is not None
    assert [reply == replies[0] for reply in replies] == [True] * 4
    assert releases(tmp_path) == 1


@pytest.mark.parametrize(
    "change",
    [{"down": OTHER}, {"settings": {"local": {"lr": 0.5}}}, {"evaluate": False}],
    ids=["download", "settings", "evaluate"],
)
def test_a_different_request_is_answered_only_after_a_new_start_as_a_new_release(
    change: dict[str, Any], ask: Ask, tmp_path: Path
) -> None:
    first = ask(1)
    refused = ask(1, **change)
    assert refused.up is None
    assert refused.error == "round 1 was answered already, to a different request"
    assert ask(1, start=2) == first, "the stored answer is valid for the second start, too"
    assert ask(1, start=2, **change).up is None
    assert releases(tmp_path) == 1
    another = ask(1, start=3, **change)
    assert another.up not in (None, first.up)
    assert releases(tmp_path) == 2
    assert ask(1, start=3, **change) == another
    assert ask(1, start=3).up is None


def test_later_answers_are_deleted_when_a_round_is_computed_anew(ask: Ask, tmp_path: Path) -> None:
    """The new round 2 starts from another state, although its request is the same."""
    before = [ask(1), ask(2)]
    assert ask(1, start=2, down=OTHER).up is not None
    assert ask(2, start=2).up not in (None, before[1].up)
    assert releases(tmp_path) == 4


def test_states_of_stored_answers_are_kept_so_that_training_can_continue(
    ask: Ask, tmp_path: Path
) -> None:
    """A server with rare checkpoints starts again, and sends another download from round 3 on."""
    for round in (1, 2, 3, 4):
        ask(round)
    assert [ask(round, start=2).error for round in (1, 2)] == [None, None]
    assert ask(3, start=2, down=OTHER).error is None
    assert ClientFiles(client.folder_of(tmp_path, "e", 0), 9, "e").round(0) == 3


def test_answers_of_settled_rounds_are_deleted_and_never_earlier(ask: Ask, tmp_path: Path) -> None:
    for round in (1, 2, 3):
        ask(round, settled=round - 1, committed=round - 1)
    folder = client.folder_of(tmp_path, "e", 0)
    assert [path.name for path in (folder / "answers").iterdir()] == ["000003.safetensors"]
    reply = ask(3, settled=99, committed=99)
    assert reply == ask(3, settled=99, committed=99), "a false `settled` does not delete the answer"
    assert releases(tmp_path) == 3


def test_a_client_refuses_rounds_beyond_max_rounds_kept(ask: Ask) -> None:
    assert [ask(round).error for round in range(1, 6)] == [None] * 5
    assert "(max-rounds-kept)" in str(ask(6).error)
    assert ask(6, settled=4, committed=5).error is None


def test_a_failed_round_is_not_stored_as_an_answer(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fedgh.engines.host.ClientHost._train", lambda *_: 1 / 0)
        assert ask(1).error == "ZeroDivisionError; see the client's own log"
    assert ask(1).up is not None
    assert releases(tmp_path) == 2, "the release of the failed round stays counted"


def test_a_damaged_answer_is_an_error_and_not_computed_again(
    ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask(1)
    (file,) = (client.folder_of(tmp_path, "e", 0) / "answers").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert ask(1).error == "RunError; see the client's own log"
    assert f"{file} cannot be read" in caplog.text
    assert releases(tmp_path) == 1


def test_noisy_statistics_are_drawn_once_even_if_the_answers_are_lost(
    ask: Ask, tmp_path: Path
) -> None:
    """Here the server has lost every answer, and requests the state before the first round."""
    plus = quick("method.name=fedgh_plus", "method.feature_dim=32", "privacy.protects=sample")
    down = wire.to_bytes(plus.config.method.broadcast(plus.initial_server(), Recipient(0)))
    make = partial(unpredictable_client, of=plus)
    replies = [ask(round, down=down, make=make, trained=0) for round in (1, 2, 3)]
    ups = [wire.from_bytes(reply.up) for reply in replies if reply.up is not None]
    assert len(ups) == 3
    assert all(up["sums"].equal(ups[0]["sums"]) for up in ups)
    assert all(up["second"].equal(ups[0]["second"]) for up in ups)
    assert releases(tmp_path) == 1


def test_another_torch_version_of_the_server_is_not_a_new_request(ask: Ask) -> None:
    """Otherwise an upgrade of the server would cost a second release."""
    assert ask(1, torch="2.6.0").up == ask(1).up


def test_the_log_of_a_client_is_on_standard_error() -> None:
    """Python prints no log by default once a library has a handler, and Flower prints its own."""
    code = """
from flwr.app import Context, Message, MessageType, RecordDict
from fedgh.flower import client
from fedgh.flower.grid import LocalGrid
LocalGrid({})  # sets the identity of this process, which Flower puts into messages
message = Message(RecordDict(), dst_node_id=1, message_type=MessageType.TRAIN)
client.app(message, Context(1, 1, {"client": 0, "app": "nowhere:app"}, RecordDict(), {}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "this client has failed" in done.stderr
    assert "nowhere" in done.stderr
