"""A whole audit, what is written of it, and what a report makes of it."""

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
from fedgh.audit.noise import OPEN, Level
from fedgh.audit.result import Audit
from fedgh.errors import RunError
from fedgh.report.audit_sheets import MIDDLE, overview
from fedgh.report.write import write_page
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from fedgh.trust import OWN
from tests.support.tiny import quick

LITTLE = Effort(sizes=(1, 5), targets=8, candidates=40, levels=(OPEN, MIDDLE))


@pytest.fixture(scope="module")
def found(run: RunFolder) -> Audit:
    return audit(run, 0, 0, lambda _: None, LITTLE, trust=OWN)


@pytest.fixture
def folder(run: RunFolder, found: Audit, tmp_path: Path) -> RunFolder:
    """A copy of the run with its audit."""
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "run"))
    result.write(copy, found)
    return copy


def test_every_case_is_there_once(found: Audit) -> None:
    whole = {(row.extractor, row.level, row.everything or row.size) for row in found.reconstructed}
    sizes = (1, 5, True)
    attackers: list[tuple[str, Level]] = [("known", OPEN), ("unknown", OPEN), ("known", MIDDLE)]
    assert whole == {(*who, size) for who in attackers for size in sizes}
    assert len(found.reconstructed) == 9
    told = [(r.attack, r.against, r.extractor, r.level, r.size, r.everything) for r in found.told]
    assert len(set(told)) == len(told) == 1 + 3 * 5 + 5  # loss, three attackers, the distance
    assert found.networks == 3
    assert len(found.classes) == len(found.sizes) == 4


def test_a_single_vector_leaks_and_one_with_noise_does_not(found: Audit) -> None:
    rows = {(r.extractor, r.level): r for r in found.reconstructed if r.size == 1}
    assert rows["known", OPEN].gain > 1
    assert rows["known", OPEN].gain > 5 * abs(rows["known", MIDDLE].gain)
    ratio = [row for row in found.told if row.attack == "likelihood ratio" and row.size == 1]
    assert all(row.auc == 1 for row in ratio if row.level == OPEN and row.extractor == "known")
    assert all(row.auc < 0.8 for row in ratio if row.level == MIDDLE)


def test_it_is_repeatable_and_another_seed_is_another_audit(run: RunFolder, found: Audit) -> None:
    small = Effort(sizes=(1,), targets=4, candidates=10, levels=(OPEN,))
    one, two, other = (audit(run, 1, seed, lambda _: None, small, trust=OWN) for seed in (3, 3, 4))
    assert one.model_dump(exclude={"seconds"}) == two.model_dump(exclude={"seconds"})
    assert one.reconstructed != other.reconstructed


def test_what_is_written_is_what_is_read(folder: RunFolder, found: Audit) -> None:
    assert result.read(folder) == found
    assert result.read(RunFolder(folder.path.parent)) is None


def test_a_report_shows_it(folder: RunFolder, found: Audit) -> None:
    text = write_page([folder.path], figures=folder.path / "figures").read_text()
    for name in ("audit-gain-1", "audit-members-left-out-1", "audit-members-held-out-1"):
        assert f'data-chart="{name}"' in text
        assert (folder.path / "figures" / f"{name}.svg").exists()
    assert "visible by design" in text
    sources = re.findall(r'<img alt="[^"]+" width=\d+ src="data:image/png;base64,([^"]+)"', text)
    shown = [Image.open(io.BytesIO(base64.b64decode(source))) for source in sources]
    assert [(image.width, image.height) for image in shown] == [
        (picture.width, picture.height) for picture in found.pictures.values()
    ]
    assert (folder.path / "figures" / "audit-samples-1.png").exists()


def test_the_overview_has_a_row_for_each_size(found: Audit) -> None:
    table = overview(found)
    assert [row[0] for row in table.rows] == ["1", "5", f"all ({round(sum(found.sizes) / 4)})"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert None not in table.rows[0]


def _row(key: str, value: Any) -> Callable[[Any], None]:
    return lambda table: table["told"][0].update({key: value})


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.pop("told"),
        lambda table: table.update(clip=float("nan")),
        lambda table: table.update(stranger=1),
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
def test_a_damaged_audit_is_refused_and_the_report_says_so(
    folder: RunFolder, change: Callable[[Any], None]
) -> None:
    path = folder.path / "audit.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))
    with pytest.raises(RunError, match=r"audit\.json cannot be read") as caught:
        result.read(folder)
    assert "\n" not in str(caught.value)


def test_what_is_no_audit_at_all_does_not_hurt(folder: RunFolder) -> None:
    path = folder.path / "audit.json"
    for content in (b"", b"[" * 100_000, b"\xff", b" " * (result.MAX_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(RunError, match="cannot be read"):
            result.read(folder)
    text = write_page([folder.path]).read_text()
    assert "audit.json cannot be read" in text
    assert "audit-gain" not in text


def test_names_of_classes_stay_text(folder: RunFolder) -> None:
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
def test_other_methods_that_send_means(tmp_path: Path, method: str) -> None:
    words = [f"method.name={method}", "data.classes_per_client=4", "federation.rounds=1"]
    made = loop.run(quick(*words), tmp_path / "run")
    small = Effort(sizes=(1,), targets=4, candidates=10, levels=(OPEN,))
    seen = audit(made, None, 0, lambda _: None, small, trust=OWN)
    assert seen.method == method
    assert seen.sends_counts == (method == "fedproto")


def test_a_run_that_protects_its_uploads(tmp_path: Path) -> None:
    words = ["privacy.protects=sample", "privacy.epsilon=3", "privacy.clip=2.5"]
    made = loop.run(
        quick("data.classes_per_client=4", "federation.rounds=1", *words), tmp_path / "run"
    )
    small = Effort(sizes=(1,), targets=4, candidates=10, levels=(OPEN,))
    seen = audit(made, None, 0, lambda _: None, small, trust=OWN)
    assert seen.clip == 2.5
    assert seen.protected == Level(protects="sample", epsilon=seen.protected.epsilon)
    assert seen.protected.epsilon == pytest.approx(3, rel=1e-6)
    assert {row.level for row in seen.reconstructed} == {OPEN, seen.protected}


def test_data_that_are_no_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 4
    x = (rng.normal(size=(4, 5))[y] + rng.normal(size=(400, 5))).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    data = ["data.name=npz", f"data.path={tmp_path / 'data.npz'}", "federation.rounds=1"]
    made = loop.run(quick(*data), tmp_path / "run")
    seen = audit(made, None, 0, lambda _: None, LITTLE, trust=OWN)
    assert (seen.reconstructed, seen.pictures) == ([], {})
    assert len(seen.told) > 10
    assert overview(seen).rows[0][1] is None
    result.write(made, seen)
    text = write_page([made.path]).read_text()
    assert "The data are no images" in text
    assert "audit-members-held-out-1" in text
