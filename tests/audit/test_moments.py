"""An audit of fedgh_plus: of its second moment, and of class means of the same features."""

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedgh.audit import moments, result, subject
from fedgh.audit.audit import audit
from fedgh.audit.cases import Effort
from fedgh.audit.noise import OPEN, Level
from fedgh.audit.result import Audit
from fedgh.audit.second_moment import send
from fedgh.core.moments import Moments
from fedgh.core.rng import stream
from fedgh.core.types import part
from fedgh.methods.fedproto import FedProto
from fedgh.report.audit_sheets import MIDDLE, members, overview
from fedgh.report.write import write_page
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.trust import OWN
from tests.support.tiny import quick

PLUS = ["method.name=fedgh_plus", "method.feature_dim=32", "federation.rounds=1"]
PLUS += ["data.classes_per_client=4"]  # so that each class is with two clients
LITTLE = Effort(sizes=(1,), widths=(0.5, 4), targets=4, candidates=100, levels=(OPEN, MIDDLE))


class Prototypes(FedProto):
    """A method from elsewhere."""

    name: ClassVar[str] = "tests.audit.test_moments:Prototypes"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path: Path = tmp_path_factory.mktemp("moments") / "run"
    return loop.run(quick(*PLUS), path)


@pytest.fixture(scope="module")
def found(run: RunFolder) -> Audit:
    return audit(run, 0, 0, lambda _: None, LITTLE, trust=OWN)


def test_what_is_attacked_is_what_the_server_holds(run: RunFolder) -> None:
    victim = subject.choose(run, 1, trust=OWN)
    attacks = moments.MomentAttacks.on(victim, 0, LITTLE, lambda _: None)
    held = Moments.read(part(run.committed()[1], "server.client.1."), 10)
    again = send(attacks.members, 10, OPEN, stream(0, "none"))
    assert again.samples == int(held.counts.sum()) == len(victim.client.data.train)
    assert torch.equal(again.second, held.matrix)


def test_every_case_is_there_once(found: Audit) -> None:
    rows = [(r.attack, r.against, r.level, r.size) for r in found.told]
    most = sum(found.sizes)
    assert len(set(rows)) == len(rows) == 3 * 2 * (2 + 1)  # sizes, against whom, attacks
    assert {row[3] for row in rows} == {16, 128, most}
    assert [r.size for r in found.told if r.everything] == [most] * 6
    assert (found.attacked, found.width, found.clip, found.sends_counts) == ("moments", 32, 1, True)
    assert (found.reconstructed, found.pictures, found.networks) == ([], {}, 0)


def test_few_samples_are_known_many_or_with_noise_less(found: Audit) -> None:
    for row in found.told:
        if row.level == OPEN and row.size == 16:
            assert row.auc == row.tpr == 1
        elif row.attack == "likelihood ratio" and row.size == 128:
            assert row.auc > 0.75 if row.level == OPEN else row.auc < 0.75


def test_an_attacker_has_none_of_the_samples_that_it_judges(run: RunFolder) -> None:
    attacks = moments.MomentAttacks.on(subject.choose(run, 0, trust=OWN), 0, LITTLE, lambda _: None)
    own = {tuple(row) for row in attacks.attacker.own.values.tolist()}
    for vectors in (attacks.members, *attacks.others.values()):
        assert not own & {tuple(row) for row in vectors.values.tolist()}


def test_a_report_shows_it(run: RunFolder, found: Audit, tmp_path: Path) -> None:
    folder = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    result.write(folder, found)
    assert result.read(folder) == found
    text = write_page([folder.path]).read_text()
    for name in ("audit-members-held-out-1", "audit-members-other-clients-1"):
        assert f'data-chart="{name}"' in text
    assert "second moment of 32 dimensions" in text
    assert "audit-members-left-out-1" not in text
    table = overview(found)
    assert [row[0] for row in table.rows] == ["16", "128", f"all ({sum(found.sizes)})"]
    assert all(len(row) == len(table.columns) and None not in row for row in table.rows)
    assert table.rows[0][1] == 1
    assert len(members(found).rows) == len(found.told)


def test_a_run_that_protects_its_uploads(tmp_path: Path) -> None:
    made = loop.run(quick(*PLUS, "privacy.protects=sample", "privacy.epsilon=3"), tmp_path / "run")
    seen = audit(made, None, 0, lambda _: None, LITTLE, trust=OWN)
    assert seen.protected == Level(protects="sample", epsilon=seen.protected.epsilon)
    assert seen.protected.epsilon == pytest.approx(3, rel=1e-3)
    assert {row.level for row in seen.told} == {OPEN, MIDDLE, seen.protected}


def test_class_means_of_the_same_features(tmp_path: Path) -> None:
    own = ["method.covariance=own", "privacy.protects=sample"]
    made = loop.run(quick(*PLUS, *own, "privacy.clip=7"), tmp_path / "run")
    seen = audit(made, None, 0, lambda _: None, LITTLE, trust=OWN)
    assert (seen.attacked, seen.width, seen.sends_counts) == ("class means", 32, True)
    assert seen.networks == 0  # every client has the same map: there is no other to try
    assert {row.extractor for row in seen.told} == {"known"}
    assert seen.clip == 1  # features have that length: noise is of that size, not of the setting's
    single = [r for r in seen.told if (r.attack, r.size, r.level) == ("distance", 1, OPEN)]
    assert all(row.auc == 1 for row in single)


def test_a_method_from_elsewhere_is_asked_what_it_sends(tmp_path: Path) -> None:
    words = [f"method.name={Prototypes.name}", "data.classes_per_client=4", "federation.rounds=1"]
    made = loop.run(quick(*words), tmp_path / "run")
    seen = audit(made, None, 0, lambda _: None, LITTLE, trust=OWN)
    assert (seen.attacked, seen.sends_counts, seen.width) == ("class means", True, 16)
