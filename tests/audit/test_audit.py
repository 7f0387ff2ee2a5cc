"""A complete audit, its file, and its section in a report."""

import base64
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedgh.audit import result
from fedgh.audit.audit import audit
from fedgh.audit.cases import Effort
from fedgh.audit.noise import NO_NOISE, Level
from fedgh.audit.result import Audit
from fedgh.errors import RunError
from fedgh.report.audit_sheets import MIDDLE, overview
from fedgh.report.write import write_page
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.trust import OWN
from tests.support.tiny import quick

SMALL = Effort(sizes=(1, 5), reconstructions=8, candidates=40, levels=(NO_NOISE, MIDDLE))


@pytest.fixture(scope="module")
def audited(run: RunFolder) -> Audit:
    return audit(run, 0, 0, lambda _: None, SMALL, trust=OWN)


@pytest.fixture
def folder(run: RunFolder, audited: Audit, tmp_path: Path) -> RunFolder:
    """A copy of the run with its audit."""
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    result.write(copy, audited)
    return copy


def test_every_case_has_one_result(audited: Audit) -> None:
    cases = {
        (row.extractor, row.level, row.everything or row.size) for row in audited.reconstructed
    }
    sizes = (1, 5, True)
    attackers: list[tuple[str, Level]] = [
        ("known", NO_NOISE),
        ("unknown", NO_NOISE),
        ("known", MIDDLE),
    ]
    assert cases == {(*attacker, size) for attacker in attackers for size in sizes}
    assert len(audited.reconstructed) == 9
    rows = [(r.attack, r.against, r.extractor, r.level, r.size, r.everything) for r in audited.told]
    assert len(set(rows)) == len(rows) == 1 + 3 * 5 + 5  # loss, three attackers, the distance
    assert audited.networks == 3
    assert len(audited.classes) == len(audited.sizes) == 4


def test_a_single_vector_reveals_its_sample_and_one_with_noise_does_not(audited: Audit) -> None:
    rows = {(r.extractor, r.level): r for r in audited.reconstructed if r.size == 1}
    assert rows["known", NO_NOISE].gain > 1
    assert rows["known", NO_NOISE].gain > 5 * abs(rows["known", MIDDLE].gain)
    ratio = [row for row in audited.told if row.attack == "likelihood ratio" and row.size == 1]
    assert all(row.auc == 1 for row in ratio if row.level == NO_NOISE and row.extractor == "known")
    assert all(row.auc < 0.8 for row in ratio if row.level == MIDDLE)


def test_the_same_seed_gives_the_same_audit_and_another_seed_a_different_one(
    run: RunFolder,
) -> None:
    small = Effort(sizes=(1,), reconstructions=4, candidates=10, levels=(NO_NOISE,))
    one, two, other = (audit(run, 1, seed, lambda _: None, small, trust=OWN) for seed in (3, 3, 4))
    assert one.model_dump(exclude={"seconds"}) == two.model_dump(exclude={"seconds"})
    assert one.reconstructed != other.reconstructed


def test_reading_returns_what_was_written(folder: RunFolder, audited: Audit) -> None:
    assert result.read(folder) == audited
    assert result.read(RunFolder(folder.path.parent)) is None


def test_a_report_shows_charts_and_pictures_of_the_audit(folder: RunFolder, audited: Audit) -> None:
    text = write_page([folder.path], figures=folder.path / "figures").read_text()
    for name in ("audit-gain-1", "audit-members-left-out-1", "audit-members-held-out-1"):
        assert f'data-chart="{name}"' in text
        assert (folder.path / "figures" / f"{name}.svg").exists()
    assert "visible by design" in text
    sources = re.findall(r'<img alt="[^"]+" width=\d+ src="data:image/png;base64,([^"]+)"', text)
    shown = [Image.open(io.BytesIO(base64.b64decode(source))) for source in sources]
    assert [(image.width, image.height) for image in shown] == [
        (picture.width, picture.height) for picture in audited.pictures.values()
    ]
    assert (folder.path / "figures" / "audit-samples-1.png").exists()


def test_the_overview_has_a_row_for_each_size(audited: Audit) -> None:
    table = overview(audited)
    assert [row[0] for row in table.rows] == ["1", "5", f"all ({round(sum(audited.sizes) / 4)})"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert None not in table.rows[0]


def _row(key: str, value: Any) -> Callable[[Any], None]:
    return lambda table: table["told"][0].update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.pop("told"),
        lambda table: table.update(clip=float("nan")),
        lambda table: table.update(unknown=1),
        lambda table: table.update(classes=["x" * 300]),
        lambda table: table.update(told=table["told"] * 1000),
        lambda table: table["pictures"]["sizes"].update(height=3),
        lambda table: table["pictures"]["sizes"].update(pixels="?"),
        lambda table: table["pictures"].update({"<b>": table["pictures"]["sizes"]}),
        lambda table: table["reconstructed"][0].update(gain=1e300),
        _row("auc", 2),
        _row("attack", "<b>"),
        _row("size", 0),
    ],
)
def test_a_damaged_audit_file_is_refused(folder: RunFolder, change: Callable[[Any], None]) -> None:
    path = folder.path / "audit.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(RunError, match=r"audit\.json cannot be read") as caught:
        result.read(folder)
    assert "\n" not in str(caught.value)


def test_a_report_names_an_unreadable_audit_file_and_is_written(folder: RunFolder) -> None:
    path = folder.path / "audit.json"
    for content in (b"", b"[" * 100_000, b"\xff", b" " * (result.MAX_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(RunError, match="cannot be read"):
            result.read(folder)
    text = write_page([folder.path]).read_text()
    assert "audit.json cannot be read" in text
    assert "audit-gain" not in text


def test_class_names_in_an_audit_are_escaped_in_the_report(folder: RunFolder) -> None:
    path = folder.path / "audit.json"
    bad = '<i title="x">&'
    table = json.loads(path.read_text())
    table["classes"][0] = bad
    for picture in table["pictures"].values():
        picture["rows"][0] = picture["columns"][0] = bad
    path.write_text(json.dumps(table))
    text = write_page([folder.path]).read_text()
    assert "<i " not in text
    assert "&lt;i title=" in text


@pytest.mark.parametrize("method", ["fedproto", "fd"])
def test_other_methods_that_send_class_means_are_attacked(tmp_path: Path, method: str) -> None:
    options = [f"method.name={method}", "data.classes_per_client=4", "federation.rounds=1"]
    run_folder = loop.run(quick(*options), tmp_path / "run")
    small = Effort(sizes=(1,), reconstructions=4, candidates=10, levels=(NO_NOISE,))
    audited = audit(run_folder, None, 0, lambda _: None, small, trust=OWN)
    assert audited.method == method
    assert audited.sends_counts == (method == "fedproto")


def test_the_noise_and_clipping_of_a_private_run_are_used(tmp_path: Path) -> None:
    options = ["privacy.protects=sample", "privacy.epsilon=3", "privacy.clip=2.5"]
    run_folder = loop.run(
        quick("data.classes_per_client=4", "federation.rounds=1", *options), tmp_path / "run"
    )
    small = Effort(sizes=(1,), reconstructions=4, candidates=10, levels=(NO_NOISE,))
    audited = audit(run_folder, None, 0, lambda _: None, small, trust=OWN)
    assert audited.clip == 2.5
    assert audited.protected == Level(protects="sample", epsilon=audited.protected.epsilon)
    assert audited.protected.epsilon == pytest.approx(3, rel=1e-6)
    assert {row.level for row in audited.reconstructed} == {NO_NOISE, audited.protected}


def test_data_other_than_images_are_attacked_by_membership_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (rng.normal(size=(4, 5))[y] + rng.normal(size=(400, 5))).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    data = ["data.name=npz", f"data.path={tmp_path / 'data.npz'}", "federation.rounds=1"]
    run_folder = loop.run(quick(*data), tmp_path / "run")
    audited = audit(run_folder, None, 0, lambda _: None, SMALL, trust=OWN)
    assert (audited.reconstructed, audited.pictures) == ([], {})
    assert len(audited.told) > 10
    assert overview(audited).rows[0][1] is None
    result.write(run_folder, audited)
    text = write_page([run_folder.path]).read_text()
    assert "The data are not images" in text
    assert "audit-members-held-out-1" in text
