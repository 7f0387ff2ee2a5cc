"""Choose learning rate and batch size for each setting of the study `pays`, on validation data.

    python -m tools.tune_pays --data-dir DIR

Trains every client alone at each point of a grid, on seeds that the study does not use. Finished
runs are not repeated. Writes every point tried to a CSV file, and prints for each setting the line
`tuned = …` for `src/fedgh/studies/definitions/pays.toml`. No choice depends on test data.
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
from fedgh.studies.study import Setting, study
from fedgh.studies.sweep import Trial, finished_runs, folder_of, run_trials
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
    seeds: int  # number of seeds with a finished run
    accuracy: float | None  # on validation data; None if a seed has no result

    @property
    def edge(self) -> str:
        """Names of the settings at the edge of the grid: a better value may lie outside."""
        edges = {
            "learning rate": self.lr in (min(RATES), max(RATES)),
            "batch size": self.batch_size in (min(SIZES), max(SIZES)),
        }
        return " and ".join(name for name, at_edge in edges.items() if at_edge)

    @property
    def line(self) -> str:
        """The line with these values for the file of the study."""
        return f'tuned = ["local.lr={self.lr:g}", "local.batch_size={self.batch_size}"]'


def plan(
    case: Setting, budget: BudgetName, seeds: Sequence[int], data_dir: Path | None
) -> list[Trial]:
    """Return the trials of training alone at every point of the grid."""
    overrides = [*case.overrides(budget), f"method.name={ALONE}", "run.global_accuracy=never"]
    return plan_search(case.experiment, GRID, seeds, overrides, data_dir)


def tried(case: str, trials: Sequence[Trial], out: Path) -> list[Point]:
    """Return the points of one setting whose runs were started, in the order of the grid."""
    rows = {row.label: row for row in statistics.rows(finished_runs(trials, out))}
    points = []
    for label in dict.fromkeys(trial.label for trial in trials):
        of_point = [trial for trial in trials if trial.label == label]
        if all(folder_of(trial, out).config.exists() for trial in of_point):
            row, local = rows.get(label), of_point[0].config.local
            seeds = row.seeds if row else 0
            accuracy = row.validation_accuracy if row and seeds == len(of_point) else None
            points.append(Point(case, local.lr, local.batch_size, seeds, accuracy))
    return points


def chosen(points: Sequence[Point]) -> Point | None:
    """Return the best point, of equal ones the first; None if not all points have been tried."""
    evaluated = [point for point in points if point.accuracy is not None]
    if len(points) < len(RATES) * len(SIZES) or not evaluated:
        return None
    return max(evaluated, key=lambda point: round(point.accuracy or 0.0, 9))


def table(points: Sequence[Sequence[Point]]) -> str:
    """Return all points of all settings as CSV."""
    rows: list[list[Cell]] = []
    for of_setting in points:
        best = chosen(of_setting)
        for point in of_setting:
            percent = None if point.accuracy is None else 100 * point.accuracy
            mark = "yes" if point == best else ""
            key: list[Cell] = [point.case, point.lr, point.batch_size]
            rows.append([*key, point.seeds, percent, mark])
    return csv_text([HEADER, *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the missing trials, write the table of points, and print the chosen ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only these settings, separated by commas")
    parser.add_argument("--seeds", default="100", help="separated by commas")
    parser.add_argument("--budget", choices=["smoke", "quick", "paper"], default="quick")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/tune-pays"))
    parser.add_argument("--table", type=Path, default=Path("docs/results/quick/pays-tuning.csv"))
    options = parser.parse_args(arguments)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    only = [name for name in options.only.split(",") if name]
    tuned = {case.name: case for case in study("pays").settings if case.tuned}
    if unknown := [name for name in only if name not in tuned]:
        parser.error(f"--only {unknown[0]}: unknown setting; choose from {', '.join(tuned)}")
    plans = {
        name: plan(case, options.budget, seeds, options.data_dir) for name, case in tuned.items()
    }
    folders = {name: options.out / options.budget / name for name in tuned}
    make_folder(options.table.parent)
    for name in only or tuned:
        print(f"{name}: {len(plans[name])} runs", flush=True)
        for run, reason in run_trials(plans[name], folders[name]).missing.items():
            print(f"  no result: {run}: {reason}", flush=True)
        _delete_checkpoints(plans[name], folders[name])
        points = [tried(each, plans[each], folders[each]) for each in tuned]
        write_atomic(options.table, table(points).encode())
    print("\n".join(_verdict(name, each) for name, each in zip(tuned, points, strict=True)))


def _verdict(name: str, points: Sequence[Point]) -> str:
    best = chosen(points)
    if best is None:
        return f"{name}: not all points of the grid have been tried, or none has a result"
    edge = f", {best.edge} at the edge of the grid" if best.edge else ""
    return f"{name}: {best.line}  # {100 * (best.accuracy or 0.0):.1f}%{edge}"


def _delete_checkpoints(trials: Sequence[Trial], out: Path) -> None:
    """Delete the models, a hundred megabytes per run: only the numbers are needed."""
    for _, run in finished_runs(trials, out).runs:
        shutil.rmtree(run.checkpoint, ignore_errors=True)


if __name__ == "__main__":
    main()
