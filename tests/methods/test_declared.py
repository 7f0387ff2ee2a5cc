"""A method that declares less than it sends: refused where it runs, before anything leaves."""

from pathlib import Path

import pytest
import torch

from fedgh.core.records import Round
from fedgh.errors import MethodError, RunError
from fedgh.methods import api
from fedgh.methods.api import Client, Payload
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedproto import FedProto
from fedgh.training import loop
from tests.support.tiny import quick

HERE = "tests.methods.test_declared"
PRIVATE = ["privacy.protects=sample", "privacy.epsilon=8"]


class OneMore(FedGH):
    """Sends a tensor that it does not declare."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        return super().client_update(client, down) | {"extra": torch.zeros(1)}


class Quiet(FedGH):
    """Declares that it sends nothing, and sends class means."""

    up = api.NOTHING  # type: ignore[assignment]


class Homemade(FedGH):
    """Computes its class means itself, so without noise."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        classes = client.data.train.labels.unique()
        return {"classes": classes.int(), "means": torch.ones(len(classes), client.task.rep_dim)}


class Twice(FedGH):
    """Has the noise drawn, and then sends something else."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        sent = super().client_update(client, down)
        return sent | {"means": sent["means"] + 1}


class Louder(FedProto):
    """Declares its counts away, and sends them."""

    up = api.PerClass("representation")


class Infinite(FedGH):
    """Keeps what is not finite."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.memory = {"kept": torch.tensor([torch.inf])}
        return super().client_update(client, down)


def reasons(name: str, tmp_path: Path, *overrides: str) -> str:
    """Why a run in which all clients fail ends."""
    with pytest.raises(RunError) as ended:
        loop.run(quick(f"method.name={HERE}:{name}", *overrides), tmp_path / "run")
    return str(ended.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OneMore", "onemore sends what `up` does not declare: expected tensors"),
        ("Quiet", "quiet sends what `up` does not declare: expected tensors []"),
        ("Louder", "louder sends what `up` does not declare: expected tensors"),
        ("Infinite", "'memory.kept' of the client is not finite any more"),
    ],
)
def test_what_is_not_declared_does_not_leave_the_client(
    name: str, reason: str, tmp_path: Path
) -> None:
    assert reason in reasons(name, tmp_path)


@pytest.mark.parametrize("name", ["Homemade", "Twice"])
def test_with_privacy_only_what_the_mechanism_made_is_sent(name: str, tmp_path: Path) -> None:
    assert "what is computed otherwise has no noise" in reasons(name, tmp_path, *PRIVATE)


@pytest.mark.parametrize("name", ["Homemade", "Twice"])
def test_without_privacy_class_means_are_the_methods_own(name: str, tmp_path: Path) -> None:
    run = loop.run(quick(f"method.name={HERE}:{name}", "federation.rounds=1"), tmp_path / "run")
    records: list[Round] = run.records()
    assert records[0].failed == []


@pytest.mark.parametrize(
    "setting", [PRIVATE, ["defence.agreement=0.2"], ["attack.clients=1"]], ids=["p", "d", "a"]
)
def test_privacy_defence_and_rehearsed_attacks_ask_the_declaration(setting: list[str]) -> None:
    """Of methods from elsewhere as of those of the package."""
    quick(f"method.name={HERE}:Homemade", *setting)
    for name in ("lg_fedavg", "tests.support.families:Generates"):
        with pytest.raises(MethodError, match="class means"):
            quick(f"method.name={name}", *setting)


class OnceOnly(FedGH):
    """Claims one release for the whole run, and makes one in every round."""

    releases_once = True


class Counting(FedGH):
    """Tells the server how many samples each client has."""

    weighs_by_examples = True


def test_a_release_in_every_round_is_paid_for_in_every_round() -> None:
    plain, claimed = quick(*PRIVATE), quick(f"method.name={HERE}:OnceOnly", *PRIVATE)
    assert plain.privacy is not None
    assert claimed.privacy == plain.privacy


def test_numbers_of_samples_do_not_go_with_a_client_that_is_hidden() -> None:
    quick(f"method.name={HERE}:Counting", *PRIVATE)
    for hidden in (["privacy.protects=client"], [*PRIVATE, "privacy.counts=secret"]):
        with pytest.raises(MethodError, match="tells the server how many samples clients have"):
            quick(f"method.name={HERE}:Counting", *hidden)


class Odd(FedGH):
    """Declares a class in place of a message."""

    up = api.PerClass  # type: ignore[assignment]


class Misspelt(FedGH):
    """Declares a part that no network has."""

    up = api.Network("own", "extractr")  # type: ignore[assignment]


@pytest.mark.parametrize(("name", "reason"), [("Odd", "is no message"), ("Misspelt", "extractr")])
def test_an_impossible_declaration_is_refused_before_anything_runs(name: str, reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        quick(f"method.name={HERE}:{name}")
