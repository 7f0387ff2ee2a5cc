"""The target client is restored from the run, and the attacker has none of its samples."""

import shutil
from pathlib import Path

import pytest
import torch

from fedgh.audit import subject
from fedgh.audit.noise import NO_NOISE
from fedgh.audit.scene import send_means
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
def test_the_attacker_has_no_sample_of_the_target_client(run: RunFolder, client: int) -> None:
    prepared = subject.prepare(subject.choose_target(run, client, trust=OWN), seed=0)
    checkpoint = restore.load(run, trust=OWN)
    own = torch.cat(checkpoint.blueprint.partition.indices(client))
    auxiliary = subject.auxiliary_samples(prepared.target, prepared.labels, seed=0).index
    assert not set(own.tolist()) & set(auxiliary.tolist())
    assert len(auxiliary) == len(prepared.known.attacker.labels)
    counts = checkpoint.experiment.counts()
    assert len(auxiliary) == int((counts.sum(0) - counts[client])[prepared.labels].sum())


def test_attacked_means_equal_the_last_uploaded_class_means(run: RunFolder) -> None:
    prepared = subject.prepare(subject.choose_target(run, 2, trust=OWN), seed=0)
    means = run.means()[3]
    mine = means["clients"] == 2
    assert means["classes"][mine].tolist() == prepared.labels
    sent = send_means(prepared.known.target, None, NO_NOISE, 1, stream(0, "send"))
    assert torch.allclose(sent.vectors.float(), means["means"][mine], atol=1e-6)


def test_an_attacker_without_the_network_has_networks_of_other_clients(run: RunFolder) -> None:
    prepared = subject.prepare(subject.choose_target(run, 0, trust=OWN), seed=0)
    known, unknown = prepared.known, prepared.unknown
    assert unknown is not None
    assert torch.equal(known.target.vectors, unknown.target.vectors)
    assert torch.equal(known.target.estimates, known.target.vectors)
    assert not torch.allclose(unknown.target.estimates, unknown.target.vectors)
    assert unknown.attacker.vectors.shape == (3, *known.attacker.vectors.shape[1:])
    assert unknown.attacker.network is None
    assert known.attacker.network is not None
    assert known.target.images is not None
    vectors = known.attacker.network(known.target.images[:9])
    assert torch.allclose(vectors.double(), known.target.vectors[:9], atol=1e-5)


def test_large_images_are_scaled_down() -> None:
    x = torch.arange(2 * 3 * 128 * 96, dtype=torch.int64).remainder(256).byte().view(2, 3, 128, 96)
    scaled = subject.images(Examples(x, torch.zeros(2), torch.tensor([1])))
    assert scaled is not None
    assert scaled.shape == (1, 3, 64, 64)
    assert float(scaled.mean()) == pytest.approx(float(x[1].float().mean() / 255), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["method.name=standalone"], "standalone, .* sends neither class means nor moments alone"),
        (["method.name=fedkd"], "fedkd, .* sends neither class means nor moments alone"),
        (["method.name=fedgh_plus", "method.statistics=own"], "sends neither class means nor"),
        (["data.classes_per_client=2"], "choose another --client"),
    ],
)
def test_a_run_that_cannot_be_attacked_is_refused_with_the_reason(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    run_folder = loop.run(quick("federation.rounds=1", *options), tmp_path / "run")
    with pytest.raises(FedghError, match=reason) as caught:
        subject.prepare(subject.choose_target(run_folder, None, trust=OWN), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "client", "reason"),
    [
        ("checkpoint", 0, "has no checkpoint/"),
        ("config.toml", 0, "is not a run folder"),
        ("flower.json", 0, "on the clients' machines"),
        ("", 5, "--client 5: the run has 5 clients"),
    ],
)
def test_an_incomplete_run_folder_or_an_unknown_client_is_refused_with_the_reason(
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
        subject.prepare(subject.choose_target(RunFolder(path), client, trust=OWN), seed=0)


class MeansAndHeader(FedGH):
    """A method that uploads its header with its class means: more than an audit can attack."""

    up = api.PerClass("representation") + api.HEADER  # type: ignore[assignment]


def test_only_methods_that_declare_class_means_alone_are_attacked() -> None:
    client = a_client(torch.randn(6, 4), torch.arange(6) % 2)
    assert subject.averaged(FedGH(), client) == client.model.represent
    for method in (MeansAndHeader(), LGFedAvg(), Standalone()):
        with pytest.raises(RunError, match="sends neither class means nor moments alone"):
            subject.averaged(method, client)
