"""Methods that send more than they declare: rejected before an upload leaves the client."""

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
from tests.support.states import states
from tests.support.tiny import quick

HERE = "tests.methods.test_declared"
PRIVATE = ["privacy.protects=sample", "privacy.epsilon=8"]


class OneMore(FedGH):
    """A method that sends a tensor that it does not declare."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        return super().client_update(client, down) | {"extra": torch.zeros(1)}


class Quiet(FedGH):
    """A method that declares an empty upload and sends class means."""

    up = api.NOTHING  # type: ignore[assignment]


class Homemade(FedGH):
    """A method that computes class means itself, without noise."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        classes = client.data.train.labels.unique()
        return {"classes": classes.int(), "means": torch.ones(len(classes), client.task.rep_dim)}


class Twice(FedGH):
    """A method that makes a private release and then sends other values."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        sent = super().client_update(client, down)
        return sent | {"means": sent["means"] + 1}


class Louder(FedProto):
    """A method that sends counts without declaring them."""

    up = api.PerClass("representation")


class WiderMessage(api.PerClass):
    """A message with one more tensor than class means."""

    def specs(self, method: api.Method, shapes: api.Shapes) -> list[api.Spec]:
        (spec,) = super().specs(method, shapes)
        return [{**spec, "bias": api.Field(torch.float32, (shapes.task.num_classes,))}]


class Wider(FedGH):
    """A method that sends a header beside class means, with its own type of message."""

    up = WiderMessage("representation")

    def client_update(self, client: Client, down: Payload) -> Payload:
        return super().client_update(client, down) | {"bias": client.model.header.bias.detach()}


class SwitchedOff(FedGH):
    """A method that removes the privacy mechanism from the client."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.privacy = None
        return super().client_update(client, down)


class Sly(FedGH):
    """A method that hides numbers in metrics during evaluation."""

    def logits(self, client: Client, x: torch.Tensor) -> torch.Tensor:
        client.metrics["secret"] = 1.0
        client.seconds["secret"] = 168.0
        return super().logits(client, x)


class Boasting(FedGH):
    """A method that reports its own accuracy."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.metrics["accuracy"] = client.metrics["global_accuracy"] = 5.0
        return super().client_update(client, down)


class LateModule(FedGH):
    """A method that adds a network during a round, and fails in the second round."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.modules["late"] = torch.nn.Linear(1, 1)
        return super().client_update(client, down)


class Wordy(FedGH):
    """A method that reports a metric that is not a number."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.metrics["x"] = "abc"  # type: ignore[assignment]
        return super().client_update(client, down)


class Complex(FedGH):
    """A method that stores complex numbers that are not finite."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.memory = {"kept": torch.tensor([complex(float("nan"), 0)])}
        return super().client_update(client, down)


class Infinite(FedGH):
    """A method that stores numbers that are not finite."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        client.memory = {"kept": torch.tensor([torch.inf])}
        return super().client_update(client, down)


def reasons(name: str, tmp_path: Path, *overrides: str) -> str:
    """Return the error of a run in which all clients fail."""
    with pytest.raises(RunError) as ended:
        loop.run(quick(f"method.name={HERE}:{name}", *overrides), tmp_path / "run")
    return str(ended.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OneMore", "the upload of onemore does not match its declaration `up`: expected tensors"),
        ("Quiet", "the upload of quiet does not match its declaration `up`: expected tensors []"),
        ("Louder", "the upload of louder does not match its declaration `up`: expected tensors"),
        ("Infinite", "'memory.kept' of the client is not finite any more"),
        ("Complex", "'memory.kept' of the client is not finite any more"),
        ("LateModule", "create all networks in init_client"),
        ("Wordy", "could not convert string to float"),
    ],
)
def test_an_undeclared_upload_does_not_leave_the_client(
    name: str, reason: str, tmp_path: Path
) -> None:
    assert reason in reasons(name, tmp_path)


@pytest.mark.parametrize("name", ["Homemade", "Twice", "Wider", "SwitchedOff"])
def test_with_privacy_only_results_of_the_mechanism_are_sent(name: str, tmp_path: Path) -> None:
    assert "other values have no noise" in reasons(name, tmp_path, *PRIVATE)


@pytest.mark.parametrize("name", ["Homemade", "Twice"])
def test_without_privacy_a_method_may_compute_class_means_itself(name: str, tmp_path: Path) -> None:
    run = loop.run(quick(f"method.name={HERE}:{name}", "federation.rounds=1"), tmp_path / "run")
    records: list[Round] = run.records()
    assert records[0].failed == []


@pytest.mark.parametrize(
    "setting", [PRIVATE, ["defence.agreement=0.2"], ["attack.clients=1"]], ids=["p", "d", "a"]
)
def test_privacy_defence_and_attacks_depend_on_the_declaration(setting: list[str]) -> None:
    """The rule holds for methods outside the package, too."""
    quick(f"method.name={HERE}:Homemade", *setting)
    for name in ("lg_fedavg", "tests.support.families:Generates"):
        with pytest.raises(MethodError, match="class means"):
            quick(f"method.name={name}", *setting)


class OnceOnly(FedGH):
    """A method that declares one release, and makes one in every round."""

    releases_once = True


class Counting(FedGH):
    """A method that weights by numbers of samples."""

    weighs_by_examples = True


def test_a_release_in_every_round_is_accounted_for_in_every_round() -> None:
    plain, claimed = quick(*PRIVATE), quick(f"method.name={HERE}:OnceOnly", *PRIVATE)
    assert plain.privacy is not None
    assert claimed.privacy == plain.privacy


def test_numbers_of_samples_exclude_privacy_of_clients() -> None:
    quick(f"method.name={HERE}:Counting", *PRIVATE)
    for hidden in (["privacy.protects=client"], [*PRIVATE, "privacy.counts=secret"]):
        with pytest.raises(MethodError, match="tells the server how many samples clients have"):
            quick(f"method.name={HERE}:Counting", *hidden)


class Odd(FedGH):
    """A method that declares a class instead of a message."""

    up = api.PerClass  # type: ignore[assignment]


class Misspelt(FedGH):
    """A method that declares a submodule that does not exist."""

    up = api.Network("own", "extractr")  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("name", "reason"), [("Odd", "is not a Message"), ("Misspelt", "extractr")]
)
def test_an_impossible_declaration_is_rejected_before_the_run(name: str, reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        quick(f"method.name={HERE}:{name}")


def test_with_privacy_metrics_of_the_method_do_not_leave_the_client(tmp_path: Path) -> None:
    run = loop.run(quick(f"method.name={HERE}:Sly", *PRIVATE), tmp_path / "run")
    for record in run.records():
        assert record.method_metrics == {}
        assert "secret" not in record.seconds


def test_a_method_cannot_report_its_own_accuracy(tmp_path: Path) -> None:
    settings = ["federation.rounds=4", "run.eval_every=4", "federation.participation=0.4"]
    plain = loop.run(quick(*settings), tmp_path / "plain")
    boasting = loop.run(quick(f"method.name={HERE}:Boasting", *settings), tmp_path / "boasting")
    assert boasting.records()[-1].per_client == plain.records()[-1].per_client


def test_a_mixin_cannot_define_what_follows_from_the_declaration() -> None:
    class Mixin:
        shares = "class means"

    with pytest.raises(TypeError, match="shares follows from the declarations"):
        type("Mixed", (Mixin, FedGH), {"__module__": __name__})


def test_an_annotated_declaration_is_rejected() -> None:
    with pytest.raises(TypeError, match=r"Slip\.up: remove the annotation"):
        type("Slip", (FedGH,), {"__annotations__": {"up": api.Message}, "__module__": __name__})


class Silent(FedGH):
    """A method that sends no tensors, but weights by numbers of samples."""

    up = api.NOTHING  # type: ignore[assignment]
    weighs_by_examples = True


def test_weighting_by_samples_is_rejected_with_privacy_of_clients() -> None:
    with pytest.raises(MethodError, match="tells the server how many samples clients have"):
        quick(f"method.name={HERE}:Silent", "privacy.protects=client")


class LooksFirst(FedGH):
    """A method that uses the client's network before training."""

    def client_update(self, client: Client, down: Payload) -> Payload:
        x = client.data.train.x[client.data.train.index[:8]].float()
        with torch.no_grad():
            client.memory = {"seen": client.model(x)}
        return super().client_update(client, down)


def test_a_network_starts_each_round_in_eval_mode(tmp_path: Path) -> None:
    """The bits are the same in memory and from files, with and without evaluation."""
    zoo = ["model.extractors=tests.support.tiny:noisy", f"method.name={HERE}:LooksFirst"]
    kept = loop.run(quick(*zoo), tmp_path / "kept")
    for name, setting in (("read", "run.memory=0.000001"), ("rare", "run.eval_every=3")):
        other = loop.run(quick(*zoo, setting), tmp_path / name)
        clients = [name for name in states(kept) if name.startswith("client")]
        assert clients
        assert all(states(other)[name] == states(kept)[name] for name in clients)
