"""The folder of a comparison or of a search, read again after its runs.

`fedgh compare` writes comparison.json and `fedgh tune` search.json: which run folder has which
label and seed, and which runs have no result. All numbers come from the run folders. The files may
come from a remote party, so they are validated, and no code that they name is imported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from fedgh.core.records import Checked, checked
from fedgh.errors import RunError
from fedgh.files import read_bytes
from fedgh.runs.folder import MAX_JSON, RunFolder, parse_json
from fedgh.runs.summary import check_finished
from fedgh.studies import statistics
from fedgh.studies.statistics import Row, Runs
from fedgh.studies.sweep import Outcome
from fedgh.studies.tuning import best_of_each, ranked

COMPARISON, SEARCH = "comparison", "search"
"""Names of the files that describe a sweep, without suffix."""

MAX_RUNS = 10_000
"""Maximum number of runs of a sweep that is read."""


class _Read(Checked):
    """A part of the file; keys that are not used are ignored."""

    model_config = ConfigDict(extra="ignore")


class _RunEntry(_Read):
    label: str
    seed: int
    folder: str


class _SweepFile(_Read):
    reference: str | None = None
    last: Annotated[int, Field(ge=1)] = 1
    seeds: list[int]
    runs: Annotated[list[_RunEntry], Field(max_length=MAX_RUNS)]
    missing: Annotated[dict[str, str], Field(max_length=MAX_RUNS)]


@dataclass(frozen=True)
class Sweep:
    """Finished runs that are compared, and the reasons of those without a result."""

    folder: Path
    searched: bool  # by `fedgh tune`: settings are chosen on validation data, never on test data
    reference: str | None  # the label that the others are compared with
    last: int  # number of last evaluations over which a result is the mean
    seeds: Sequence[int]
    runs: dict[str, Runs]  # by label and seed
    missing: dict[str, str]  # reasons, by label and seed

    @property
    def name(self) -> str:
        """The name of its files in the folder, without suffix."""
        return SEARCH if self.searched else COMPARISON

    @cached_property
    def rows(self) -> list[Row]:
        """A row for each label; those of a search are ranked by validation accuracy."""
        if self.searched:
            return ranked(statistics.rows_of(self.runs, self.last))
        return statistics.rows_of(self.runs, self.last, self.reference)

    @cached_property
    def chosen(self) -> set[str]:
        """The labels that a search has chosen, one for each method."""
        return {row.label for row in best_of_each(self.rows).values()} if self.searched else set()

    @property
    def all_runs(self) -> Iterator[RunFolder]:
        """All runs, label by label."""
        for runs in self.runs.values():
            yield from runs.values()


def write(folder: Path, name: str, outcome: Outcome, about: dict[str, Any]) -> Sweep:
    """Write NAME.json and NAME.csv about the runs of a sweep, and return it.

    `about` has the seeds, of a comparison also `reference` and `last`, and anything else that
    describes it.
    """
    reference, last = about.get("reference"), about.get("last", 1)
    runs = statistics.by_label(outcome)
    searched = name == SEARCH
    sweep = Sweep(folder, searched, reference, last, about["seeds"], runs, outcome.missing)
    statistics.write(sweep.rows, outcome, folder / name, about)
    return sweep


def holds_sweep(folder: Path) -> bool:
    """Return whether this is the folder of a comparison or a search."""
    return any((folder / f"{name}.json").is_file() for name in (COMPARISON, SEARCH))


def read(folder: Path) -> Sweep:
    """Read a comparison, or else a search; raise RunError if its file is not valid.

    A run that is damaged, or not there, is missing with the reason. Its label has no result then:
    a mean over the other seeds would be biased.
    """
    searched = not (folder / f"{COMPARISON}.json").is_file()
    path = folder / f"{SEARCH if searched else COMPARISON}.json"
    try:
        content = parse_json(read_bytes(path, MAX_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read ({error}); the command writes it again") from None
    file = checked(_SweepFile, content, path)
    runs: dict[str, Runs] = {}
    missing = dict(file.missing)
    damaged: set[str] = set()
    for entry in file.runs:
        try:
            run = _finished_run(folder, entry.folder)
        except RunError as error:
            missing[f"{entry.label}, seed {entry.seed}"] = str(error)
            damaged.add(entry.label)
            continue
        runs.setdefault(entry.label, {})[entry.seed] = run
    whole = {label: of_label for label, of_label in runs.items() if label not in damaged}
    return Sweep(folder, searched, file.reference, file.last, file.seeds, whole, missing)


def _finished_run(folder: Path, name: str) -> RunFolder:
    if Path(name).name != name or name in ("", "..") or (folder / name).is_symlink():
        raise RunError(f"'{name}' is no run folder in {folder}")
    run = RunFolder(folder / name)
    run.check_exists()
    check_finished(run, run.summary().rounds)
    return run
