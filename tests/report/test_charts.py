"""The numbers in charts equal the numbers in the records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedgh.core.records import ClientInfo
from fedgh.report import charts, client_charts
from fedgh.report.client_charts import MAX_NAMED_CLASSES, client_name
from fedgh.report.means_chart import best_plane, means_chart, project
from fedgh.report.page import Figure
from fedgh.report.run_page import run_page
from fedgh.runs.read import NamedRun, name_runs
from fedgh.trained import confusion
from fedgh.trust import OWN
from tests.report.parts import alone, cut, rewrite, rows


def test_accuracy_and_loss_charts_have_the_numbers_of_the_records(runs: list[NamedRun]) -> None:
    expected = [
        (run.label, record.round, record.accuracy, record.bytes_total)
        for run in runs
        for record in run.folder.records()
    ]
    drawn = [row for row in rows(charts.accuracy_over_rounds(alone(runs))) if "run" in row]
    assert [(r["run"], r["round"], r["accuracy"], r["bytes"]) for r in drawn] == expected
    over_bytes = [row for row in rows(charts.accuracy_over_bytes(alone(runs))) if "run" in row]
    unit, size = charts.byte_unit(max(sent for *_, sent in expected))
    assert [row["sent"] * size for row in over_bytes] == [sent for *_, sent in expected]
    assert unit == "KB"
    target = [row for row in rows(charts.accuracy_over_rounds(alone(runs))) if "run" not in row]
    assert target == [{"accuracy": 0.3}]
    losses = [r.train_loss for run in runs for r in run.folder.records()]
    assert [row["loss"] for row in rows(charts.loss_over_rounds(alone(runs)))] == losses


def test_several_seeds_are_shown_as_mean_and_standard_deviation(runs: list[NamedRun]) -> None:
    one, other = runs[:2]
    chart = charts.accuracy_over_rounds({"both": [one, other], "alone": [one]})
    drawn = {(row["run"], row["round"]): row for row in rows(chart) if "run" in row}
    for a, b in zip(one.evaluated, other.evaluated, strict=True):
        assert a.accuracy is not None
        assert b.accuracy is not None
        both, single = drawn["both", a.round], drawn["alone", a.round]
        std = abs(a.accuracy - b.accuracy) / 2**0.5  # the sample standard deviation of two
        assert both["accuracy"] == pytest.approx((a.accuracy + b.accuracy) / 2)
        assert both["high"] - both["accuracy"] == pytest.approx(std)
        assert both["bytes"] == (a.bytes_total + b.bytes_total) / 2
        assert single["accuracy"] == a.accuracy
        assert "low" not in single  # a single seed has no band


def test_the_band_of_accuracies_ends_at_a_hundred_percent(
    folders: list[Path], runs: list[NamedRun], tmp_path: Path
) -> None:
    path = shutil.copytree(folders[0], tmp_path / "run")
    rewrite(path / "rounds.jsonl", accuracy=1.0)
    last = max(
        (row for row in rows(charts.accuracy_over_rounds({"both": [*name_runs([path]), runs[0]]}))),
        key=lambda row: row.get("round", 0),
    )
    assert last["low"] < last["accuracy"] < last["high"] == 1.0


def test_a_mean_has_only_rounds_that_all_seeds_have(
    folders: list[Path], runs: list[NamedRun], tmp_path: Path
) -> None:
    (shorter,) = name_runs([cut(folders[1], tmp_path / "run", 1)])
    drawn = rows(charts.loss_over_rounds({"both": [runs[0], shorter]}))
    assert [row["round"] for row in drawn] == [1]


def test_more_groups_than_colours_have_a_panel_each(runs: list[NamedRun]) -> None:
    few = {str(number): runs[:1] for number in range(charts.COLOURS)}
    many = {**few, "one more": runs}
    assert "facet" not in charts.accuracy_over_rounds(few).to_dict()
    panels = charts.accuracy_over_rounds(many).to_dict()
    assert panels["facet"]["sort"] == [*many]
    assert "color" not in json.dumps(panels["spec"])


@pytest.mark.parametrize(("rounds", "ticks"), [(1, [1]), (2, [1, 2]), (12, [*range(1, 13)])])
def test_few_rounds_have_a_tick_each(rounds: int, ticks: list[int]) -> None:
    drawn = charts.round_axis([{"round": number} for number in range(1, rounds + 1)])
    axis: Any = drawn.to_dict()
    assert axis["axis"]["values"] == ticks
    assert axis["axis"]["format"] == "d"


@pytest.mark.parametrize(
    ("count", "unit"), [(0, "B"), (1023, "B"), (1024, "KB"), (5 * 2**20, "MB"), (2**60, "TB")]
)
def test_the_unit_of_bytes_follows_the_number(count: int, unit: str) -> None:
    assert charts.byte_unit(count)[0] == unit


def test_rounds_that_were_not_evaluated_are_not_drawn(folders: list[Path], tmp_path: Path) -> None:
    path = cut(folders[0], tmp_path / "run", 2)
    rewrite(path / "rounds.jsonl", accuracy=None, accuracy_per_client=None)
    runs = name_runs([path])
    drawn = [row for row in rows(charts.accuracy_over_rounds(alone(runs))) if "run" in row]
    assert [row["round"] for row in drawn] == [1]
    scores = [row["accuracy"] for row in rows(client_charts.accuracy_by_client(alone(runs)))]
    assert scores == runs[0].rounds[0].accuracies


def test_bytes_and_seconds_add_up(
    runs: list[NamedRun], folders: list[Path], tmp_path: Path
) -> None:
    path = cut(folders[0], tmp_path / "run", 1)
    record = runs[0].rounds[0]
    wire_bytes = record.bytes_up + record.bytes_down + 1000
    rewrite(path / "rounds.jsonl", wire_bytes=wire_bytes)
    drawn = rows(charts.bytes_by_direction(alone(name_runs([path]))))
    sent = {row["kind"]: row["bytes"] for row in drawn}
    assert sent == {"up": record.bytes_up, "down": record.bytes_down, "overhead": 1000}
    drawn = rows(charts.seconds_by_phase(alone(runs)))
    seconds = {(row["run"], row["phase"]): row["seconds"] for row in drawn}
    for run in runs:
        for phase, name in [("train", "clients: train"), ("server", "server")]:
            spent = sum(record.seconds[phase] for record in run.rounds)
            assert seconds[run.label, name] == pytest.approx(spent)
        total = sum(record.seconds["total"] for record in run.rounds)
        assert seconds[run.label, "wall clock"] == pytest.approx(total)


def test_every_client_has_its_last_accuracy(runs: list[NamedRun]) -> None:
    drawn = rows(client_charts.accuracy_by_client(alone(runs[:1])))
    assert [row["accuracy"] for row in drawn] == runs[0].rounds[-1].accuracies
    assert [row["name"] for row in drawn] == [client_name(client) for client in runs[0].clients]
    together = rows(client_charts.accuracy_by_client(alone(runs)))
    assert {(row["run"], row["client"]): row["accuracy"] for row in together} == {
        (run.label, client): score
        for run in runs
        for client, score in enumerate(run.rounds[-1].accuracies)
    }


def test_every_client_has_its_last_accuracy_on_all_classes(runs: list[NamedRun]) -> None:
    drawn = rows(client_charts.accuracy_by_client(alone(runs), on_all_classes=True))
    assert {(row["run"], row["client"]): row["accuracy"] for row in drawn} == {
        (run.label, client): score
        for run in runs
        for client, score in enumerate(run.rounds[-1].per_client["global_accuracy"] or [])
    }
    sections = {section.id: section for section in run_page(runs, confusion.read).sections}
    figures = [part.id for part in sections["clients"].parts if isinstance(part, Figure)]
    assert figures == ["accuracy-by-client", "global-accuracy-by-client"]


def test_a_client_is_named_by_number_network_and_a_few_classes() -> None:
    client = ClientInfo(client=3, extractor="cnn4", classes=dict.fromkeys("abcdef", 1))
    assert client_name(client) == "3 · cnn4 · a, b, c, d … (6)"
    assert client_name(ClientInfo(client=3, extractor="private", classes={})) == "3 · private"


def test_many_clients_are_shown_as_distributions_by_network(
    runs: list[NamedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_charts, "MAX_ROWS", 4)
    drawn = {row["network"]: row for row in rows(client_charts.accuracy_by_client(alone(runs[:1])))}
    scores = [score or 0 for score in runs[0].rounds[-1].accuracies]
    assert drawn["tests.support.tiny:mlp"]["clients"] == 3
    assert drawn["tests.support.tiny:mlp"]["median"] == pytest.approx(sorted(scores[::2])[1])
    assert drawn["tests.support.tiny:noisy"]["median"] == pytest.approx((scores[1] + scores[3]) / 2)


def test_the_map_of_samples_has_the_numbers_of_every_client(runs: list[NamedRun]) -> None:
    drawn = rows(client_charts.samples_by_class(runs[0]))
    assert {(row["client"], row["class"]): row["samples"] for row in drawn} == {
        (client.client, name): count
        for client in runs[0].folder.clients()
        for name, count in client.classes.items()
    }
    assert sum(row["samples"] for row in drawn) == 240


def test_class_accuracies_and_confusion_map_have_the_measured_counts(runs: list[NamedRun]) -> None:
    run, measured = runs[0], confusion.measure(runs[0].folder, trust=OWN)
    classes = run.identity.classes
    scores = rows(client_charts.accuracy_by_class({run.label: measured.counts}, classes))
    for row in scores:
        label = classes.index(row["class"])
        assert row["accuracy"] == measured.counts[label][label] / sum(measured.counts[label])
    cells = rows(client_charts.confusion_map(measured.counts, classes))
    assert sum(cell["samples"] for cell in cells) == sum(measured.tested)
    for cell in cells:
        true, predicted = classes.index(cell["true"]), classes.index(cell["predicted"])
        assert cell["samples"] == measured.counts[true][predicted]
    mistakes = sum(measured.tested) - sum(measured.right)
    assert sum(count for *_, count, _ in client_charts.most_confused(measured.counts)) <= mistakes


def test_a_hundred_classes_are_sorted_and_have_no_legend(runs: list[NamedRun]) -> None:
    classes = [f"class {label}" for label in range(100)]
    counts = [[0] * 100 for _ in classes]
    for label in range(100):
        counts[label][label] = 100 - label
        counts[label][0] += label
    drawn = client_charts.accuracy_by_class({"one": counts}, classes).to_dict()
    assert len(classes) > MAX_NAMED_CLASSES
    assert drawn["encoding"]["x"]["sort"][0] == "class 99"
    assert not drawn["encoding"]["x"]["axis"]["labels"]
    many = NamedRun(runs[0].label, runs[0].folder)
    many.__dict__["identity"] = runs[0].identity.model_copy(update={"classes": classes})
    projection = project(many)
    assert projection is not None
    chart = means_chart(many, projection).to_dict()
    assert chart["spec"]["encoding"]["color"]["legend"] is None


def test_class_means_are_projected_once_for_all_rounds(runs: list[NamedRun]) -> None:
    run = runs[0]
    projection = project(run)
    assert projection is not None
    by_round = run.folder.means()
    stacked = torch.cat([means["means"] for means in by_round.values()]).double()
    centred = stacked - stacked.mean(0)
    values = torch.linalg.svd(centred).S  # another way to compute the plane
    assert projection.explained == pytest.approx(float((values[:2] ** 2).sum() / (values**2).sum()))
    points = torch.tensor([[row["x"], row["y"]] for row in projection.rows], dtype=torch.float64)
    assert torch.allclose((points**2).sum(0), values[:2] ** 2)
    labels = [
        (row["round"], row["client"], run.identity.classes.index(row["class"]))
        for row in projection.rows
    ]
    assert labels == [
        (round, client, label)
        for round, means in by_round.items()
        for client, label in zip(means["clients"].tolist(), means["classes"].tolist(), strict=True)
    ]
    assert project(runs[1]) is None


def test_class_means_of_width_one_are_projected_to_a_line() -> None:
    plane, centre, explained = best_plane(torch.tensor([[1.0], [3.0]]))
    assert plane.tolist() == [[1.0, 0.0]]
    assert (centre.tolist(), explained) == ([2.0], 1.0)


def test_text_from_a_run_is_never_a_field_name_in_a_chart(runs: list[NamedRun]) -> None:
    chart = json.dumps(client_charts.samples_by_class(runs[0]).to_dict()["encoding"])
    assert chart.count("alert(1)") == 2  # in `sort` and `domain`, which hold values
