"""Audits of fedgh_plus: of its second moment, and of class means of the same features."""

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fedgh.audit import moments, result, subject
from fedgh.audit.audit import audit
from fedgh.audit.cases import Effort
from fedgh.audit.noise import NO_NOISE, Level
from fedgh.audit.result import Audit
from fedgh.audit.second_moment import send_moments
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
PLUS += ["data.classes_per_client=4"]  # so that two clients have each class
SMALL = Effort(
    sizes=(1,), widths=(0.5, 4), reconstructions=4, candidates=100, levels=(NO_NOISE, MIDDLE)
)


class Prototypes(FedProto):
    """A method outside of fedgh."""

    name: ClassVar[str] = "tests.audit.test_moments:Prototypes"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path: Path = tmp_path_factory.mktemp("moments") / "run"
    return loop.run(quick(*PLUS), path)


@pytest.fixture(scope="module")
def audited(run: RunFolder) -> Audit:
    return audit(run, 0, 0, lambda _: None, SMALL, trust=OWN)


def test_the_attacked_second_moment_equals_the_one_in_the_servers_state(run: RunFolder) -> None:
    target = subject.choose_target(run, 1, trust=OWN)
    attacks = moments.MomentAttacks.on(target, 0, SMALL, lambda _: None)
    held = Moments.read(part(run.committed()[1], "server.client.1."), 10)
    again = send_moments(attacks.members, 10, NO_NOISE, stream(0, "none"))
    assert again.samples == int(held.counts.sum()) == len(target.client.data.train)
    assert torch.equal(again.second, held.matrix)


def test_every_case_has_one_result(audited: Audit) -> None:
    rows = [(r.attack, r.against, r.level, r.size) for r in audited.told]
    most = sum(audited.sizes)
    assert len(set(rows)) == len(rows) == 3 * 2 * (2 + 1)  # sizes, groups of other samples, attacks
    assert {row[3] for row in rows} == {16, 128, most}
    assert [r.size for r in audited.told if r.everything] == [most] * 6
    assert (audited.attacked, audited.width, audited.clip, audited.sends_counts) == (
        "moments",
        32,
        1,
        True,
    )
    assert (audited.reconstructed, audited.pictures, audited.networks) == ([], {}, 0)


def test_few_samples_are_all_detected_and_many_or_noisy_ones_less(audited: Audit) -> None:
    for row in audited.told:
        if row.level == NO_NOISE and row.size == 16:
            assert row.auc == row.tpr == 1
        elif row.attack == "likelihood ratio" and row.size == 128:
            assert row.auc > 0.75 if row.level == NO_NOISE else row.auc < 0.75


def test_the_attacker_has_none_of_the_candidates(run: RunFolder) -> None:
    attacks = moments.MomentAttacks.on(
        subject.choose_target(run, 0, trust=OWN), 0, SMALL, lambda _: None
    )
    own = {tuple(row) for row in attacks.attacker.own.values.tolist()}
    for vectors in (attacks.members, *attacks.others.values()):
        assert not own & {tuple(row) for row in vectors.values.tolist()}


def test_a_report_shows_charts_and_tables_of_the_audit(
    run: RunFolder, audited: Audit, tmp_path: Path
) -> None:
    folder = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    result.write(folder, audited)
    assert result.read(folder) == audited
    text = write_page([folder.path]).read_text()
    for name in ("audit-members-held-out-1", "audit-members-other-clients-1"):
        assert f'data-chart="{name}"' in text
    assert "second moment of 32 dimensions" in text
    assert "audit-members-left-out-1" not in text
    table = overview(audited)
    assert [row[0] for row in table.rows] == ["16", "128", f"all ({sum(audited.sizes)})"]
    assert all(len(row) == len(table.columns) and None not in row for row in table.rows)
    assert table.rows[0][1] == 1
    assert len(members(audited).rows) == len(audited.told)


def test_the_noise_of_a_private_run_is_one_of_the_levels(tmp_path: Path) -> None:
    folder = loop.run(
        quick(*PLUS, "privacy.protects=sample", "privacy.epsilon=3"), tmp_path / "run"
    )
    audited = audit(folder, None, 0, lambda _: None, SMALL, trust=OWN)
    assert audited.protected == Level(protects="sample", epsilon=audited.protected.epsilon)
    assert audited.protected.epsilon == pytest.approx(3, rel=1e-3)
    assert {row.level for row in audited.told} == {NO_NOISE, MIDDLE, audited.protected}


def test_class_means_of_the_feature_map_are_attacked_without_other_networks(tmp_path: Path) -> None:
    own = ["method.covariance=own", "privacy.protects=sample"]
    folder = loop.run(quick(*PLUS, *own, "privacy.clip=7"), tmp_path / "run")
    audited = audit(folder, None, 0, lambda _: None, SMALL, trust=OWN)
    assert (audited.attacked, audited.width, audited.sends_counts) == ("class means", 32, True)
    assert (
        audited.networks == 0
    )  # all clients have the same feature map, so there is no other network to try
    assert {row.extractor for row in audited.told} == {"known"}
    assert audited.clip == 1  # the length of the features, not privacy.clip
    single = [r for r in audited.told if (r.attack, r.size, r.level) == ("distance", 1, NO_NOISE)]
    assert all(row.auc == 1 for row in single)


def test_a_method_outside_of_fedgh_is_attacked_by_its_declaration(tmp_path: Path) -> None:
    options = [f"method.name={Prototypes.name}", "data.classes_per_client=4", "federation.rounds=1"]
    folder = loop.run(quick(*options), tmp_path / "run")
    audited = audit(folder, None, 0, lambda _: None, SMALL, trust=OWN)
    assert (audited.attacked, audited.sends_counts, audited.width) == ("class means", True, 16)
