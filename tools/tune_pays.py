"""Choose learning rate and batch size for each setting of the study `pays`, on validation data.

    python -m tools.tune_pays --data-dir DIR

Trains every client alone at each point of a grid, on seeds that the study does not use. What is
there already is not run again. Writes every point tried to a CSV file, and prints for each setting
the line `tuned = …` for `src/fedgh/studies/definitions/pays.toml`. Test data choose nothing.
"""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgh.choices import BudgetName
from fedgh.files import make_folder, write_atomic
from fedgh.studies import statistics
from fedgh.studies.pays import ALONE
from fedgh.studies.study import Case, study
from fedgh.studies.sweep import Trial, folder_of, found, run_trials
from fedgh.studies.tuning import plan_search
from fedgh.tables import Cell, csv_text

GRID = ("local.lr=0.001,0.003,0.01,0.03", "local.batch_size=8,32")
RATES, SIZES = ([float(value) for value in line.split("=")[1].split(",")] for line in GRID)
HEADER = ["setting", "local.lr", "local.batch_size", "seeds", "validation accuracy, %", "chosen"]


@dataclass(frozen=True)
class Point:
    """A point of the grid that was tried."""

    case: str
    lr: float
    batch_size: int
    seeds: int  # that were trained to the end
    accuracy: float | None  # on validation data; None where a seed has no result

    @property
    def edge(self) -> str:
        """What is the smallest or largest of the grid here, so that better may lie beyond."""
        edges = {
            "learning rate": self.lr in (min(RATES), max(RATES)),
            "batch size": self.batch_size in (min(SIZES), max(SIZES)),
        }
        return " and ".join(name for name, at_edge in edges.items() if at_edge)

    @property
    def line(self) -> str:
        """For the file of the study."""
        return f'tuned = ["local.lr={self.lr:g}", "local.batch_size={self.batch_size}"]'


def plan(
    case: Case, budget: BudgetName, seeds: Sequence[int], data_dir: Path | None
) -> list[Trial]:
    """Training alone at every point of the grid."""
    overrides = [*case.at(budget), f"method.name={ALONE}", "run.global_accuracy=never"]
    return plan_search(case.experiment, GRID, seeds, overrides, data_dir)


def tried(case: str, trials: Sequence[Trial], out: Path) -> list[Point]:
    """The points of one setting that were begun, in the order of the grid."""
    there = found(trials, out)
    rows = {row.label: row for row in statistics.rows(there)}
    points = []
    for label in dict.fromkeys(trial.label for trial in trials):
        here = [trial for trial in trials if trial.label == label]
        if all(folder_of(trial, out).config.exists() for trial in here):
            row, local = rows.get(label), here[0].config.local
            seeds = row.seeds if row else 0
            accuracy = row.validation_accuracy if row and seeds == len(here) else None
            points.append(Point(case, local.lr, local.batch_size, seeds, accuracy))
    return points


def chosen(points: Sequence[Point]) -> Point | None:
    """The best once all have been tried; of equal ones the first in the order of the grid."""
    judged = [point for point in points if point.accuracy is not None]
    if len(points) < len(RATES) * len(SIZES) or not judged:
        return None
    return max(judged, key=lambda point: round(point.accuracy or 0.0, 9))


def table(points: Sequence[Sequence[Point]]) -> str:
    """All points of all settings as CSV."""
    rows: list[list[Cell]] = []
    for each in points:
        best = chosen(each)
        for point in each:
            percent = None if point.accuracy is None else 100 * point.accuracy
            mark = "yes" if point == best else ""
            where: list[Cell] = [point.case, point.lr, point.batch_size]
            rows.append([*where, point.seeds, percent, mark])
    return csv_text([HEADER, *rows])


def main(words: Sequence[str] | None = None) -> None:
    """Run what is left, then write and print what it says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only these settings, between commas")
    parser.add_argument("--seeds", default="100")
    parser.add_argument("--budget", choices=["smoke", "quick", "paper"], default="quick")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tune-pays"))
    parser.add_argument("--table", type=Path, default=Path("docs/results/quick/pays-tuning.csv"))
    options = parser.parse_args(words)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    only = [name for name in options.only.split(",") if name]
    tuned = {case.name: case for case in study("pays").cases if case.tuned}
    if strange := [name for name in only if name not in tuned]:
        parser.error(f"--only {strange[0]}: not among {', '.join(tuned)}")
    plans = {
        name: plan(case, options.budget, seeds, options.data_dir) for name, case in tuned.items()
    }
    folders = {name: options.out / options.budget / name for name in tuned}
    make_folder(options.table.parent)
    for name in only or tuned:
        print(f"{name}: {len(plans[name])} runs", flush=True)
        for run, why in run_trials(plans[name], folders[name]).missing.items():
            print(f"  no result: {run}: {why}", flush=True)
        _forget_models(plans[name], folders[name])
        points = [tried(each, plans[each], folders[each]) for each in tuned]
        write_atomic(options.table, table(points).encode())
    print("\n".join(_words(name, each) for name, each in zip(tuned, points, strict=True)))


def _words(name: str, points: Sequence[Point]) -> str:
    best = chosen(points)
    if best is None:
        return f"{name}: not all points of the grid have been tried, or none has a result"
    edge = f", {best.edge} at the edge of the grid" if best.edge else ""
    return f"{name}: {best.line}  # {100 * (best.accuracy or 0.0):.1f}%{edge}"


def _forget_models(trials: Sequence[Trial], out: Path) -> None:
    """A search needs the numbers of its runs; the networks of one take a hundred megabytes."""
    for _, run in found(trials, out).runs:
        shutil.rmtree(run.checkpoint, ignore_errors=True)


if __name__ == "__main__":
    main()
