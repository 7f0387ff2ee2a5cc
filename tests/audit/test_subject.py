"""The victim is what the run left, and the attacker has nothing of it."""

import shutil
from pathlib import Path

import pytest
import torch

from fedgh.audit import subject
from fedgh.audit.noise import OPEN
from fedgh.audit.scene import send
from fedgh.core.rng import stream
from fedgh.core.types import Examples
from fedgh.errors import FedghError, RunError
from fedgh.methods import api
from fedgh.methods.fedgh import FedGH
from fedgh.methods.lg_fedavg import LGFedAvg
from fedgh.methods.standalone import Standalone
from fedgh.runs.folder import RunFolder
from fedgh.training import loop, restore
from fedgh.trust import OWN
from tests.support.tiny import a_client, quick


@pytest.mark.parametrize("client", [0, 1])
def test_the_attacker_has_no_sample_of_the_victim(run: RunFolder, client: int) -> None:
    found = subject.find(subject.choose(run, client, trust=OWN), seed=0)
    left = restore.load(run, trust=OWN)
    own = torch.cat(left.blueprint.partition.indices(client))
    theirs = subject.others_samples(found.victim, found.labels, seed=0).index
    assert not set(own.tolist()) & set(theirs.tolist())
    assert len(theirs) == len(found.known.attacker.labels)
    counts = left.experiment.counts()
    assert len(theirs) == int((counts.sum(0) - counts[client])[found.labels].sum())


def test_its_means_are_those_that_it_sent_last(run: RunFolder) -> None:
    found = subject.find(subject.choose(run, 2, trust=OWN), seed=0)
    means = run.means()[3]
    mine = means["clients"] == 2
    assert means["classes"][mine].tolist() == found.labels
    sent = send(found.known.victim, None, OPEN, 1, stream(0, "send"))
    assert torch.allclose(sent.vectors.float(), means["means"][mine], atol=1e-6)


def test_without_the_network_the_attacker_has_those_of_others(run: RunFolder) -> None:
    found = subject.find(subject.choose(run, 0, trust=OWN), seed=0)
    known, unknown = found.known, found.unknown
    assert unknown is not None
    assert torch.equal(known.victim.vectors, unknown.victim.vectors)
    assert torch.equal(known.victim.guesses, known.victim.vectors)
    assert not torch.allclose(unknown.victim.guesses, unknown.victim.vectors)
    assert unknown.attacker.vectors.shape == (3, *known.attacker.vectors.shape[1:])
    assert unknown.attacker.see is None
    assert known.attacker.see is not None
    assert known.victim.images is not None
    seen = known.attacker.see(known.victim.images[:9])
    assert torch.allclose(seen.double(), known.victim.vectors[:9], atol=1e-5)


def test_large_images_are_made_smaller() -> None:
    x = torch.arange(2 * 3 * 128 * 96, dtype=torch.int64).remainder(256).byte().view(2, 3, 128, 96)
    made = subject.images(Examples(x, torch.zeros(2), torch.tensor([1])))
    assert made is not None
    assert made.shape == (1, 3, 64, 64)
    assert float(made.mean()) == pytest.approx(float(x[1].float().mean() / 255), abs=1e-4)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["method.name=standalone"], "standalone, .* sends neither class means nor moments alone"),
        (["method.name=fedkd"], "fedkd, .* sends neither class means nor moments alone"),
        (["method.name=fedgh_plus", "method.statistics=own"], "sends neither class means nor"),
        (["data.classes_per_client=2"], "choose another --client"),
    ],
)
def test_what_cannot_be_attacked_is_said(tmp_path: Path, words: list[str], reason: str) -> None:
    made = loop.run(quick("federation.rounds=1", *words), tmp_path / "run")
    with pytest.raises(FedghError, match=reason) as caught:
        subject.find(subject.choose(made, None, trust=OWN), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "client", "reason"),
    [
        ("checkpoint", 0, "has no checkpoint/"),
        ("config.toml", 0, "is not a run folder"),
        ("flower.json", 0, "on the clients' machines"),
        ("", 5, "--client 5: there are 5"),
    ],
)
def test_what_is_missing_is_said(
    run: RunFolder, tmp_path: Path, damage: str, client: int, reason: str
) -> None:
    path = shutil.copytree(run.path, tmp_path / "run")
    if damage == "checkpoint":
        shutil.rmtree(path / damage)
    elif damage == "config.toml":
        (path / damage).unlink()
    elif damage:
        (path / damage).write_text("{}")
    with pytest.raises(FedghError, match=reason):
        subject.find(subject.choose(RunFolder(path), client, trust=OWN), seed=0)


class Both(FedGH):
    """Sends its header beside class means, so more than an audit can judge."""

    up = api.PerClass("representation") + api.HEADER  # type: ignore[assignment]


def test_an_audit_asks_the_declaration() -> None:
    client = a_client(torch.randn(6, 4), torch.arange(6) % 2)
    assert subject.averaged(FedGH(), client) == client.model.represent
    for method in (Both(), LGFedAvg(), Standalone()):
        with pytest.raises(RunError, match="sends neither class means nor moments alone"):
            subject.averaged(method, client)
