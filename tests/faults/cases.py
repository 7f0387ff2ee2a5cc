"""The scenarios that faults interrupt, each with its result without a fault."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disk import Fault, Operation
from tests.faults.driver import Driver, Outcome
from tests.faults.end import end

NewWorkdir = Callable[[], Path]

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "run": ("run", ()),
    # Checkpoints are rare: states are written long before the checkpoint that they belong to.
    "rare": ("run", ("run.checkpoint_every=2", "run.memory=0.000000001")),
    "participant": ("participant", ()),
    "federation": ("federation", ("federation.rounds=2",)),
}

some_or_all = pytest.mark.parametrize(
    "stride", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.faults)]
)


@dataclass(frozen=True)
class Case:
    """A scenario with its settings, and a driver to run it."""

    name: str
    driver: Driver
    new_workdir: NewWorkdir

    def play(self, workdir: Path, fault: Fault | None = None, user: int | None = None) -> Outcome:
        """Start the scenario in a folder, or resume it there; return the outcome."""
        scenario, settings = CASES[self.name]
        return self.driver.play(workdir, fault, scenario=scenario, settings=settings, user=user)

    @cached_property
    def _uninterrupted(self) -> tuple[list[Operation], dict[str, Any]]:
        workdir = self.new_workdir()
        outcome = self.play(workdir)
        assert outcome.code == 0, outcome.output
        assert_all_files_recorded(outcome.operations, workdir)
        return outcome.operations, end(workdir)

    @property
    def operations(self) -> list[Operation]:
        """The changes of files in an uninterrupted run."""
        return self._uninterrupted[0]

    @property
    def end(self) -> dict[str, Any]:
        """The files at the end of an uninterrupted run."""
        return self._uninterrupted[1]

    def killed_after_commit(self, round: int) -> Fault:
        """Return a fault that kills the process right after a round is committed."""
        numbered = enumerate(self.operations, 1)
        commits = [n for n, op in numbered if op.other.endswith("/server.safetensors")]
        return Fault(commits[round] + 2, "kill")


def assert_all_files_recorded(operations: list[Operation], workdir: Path) -> None:
    """Check that `operations` has the opening or renaming of every file in the folder."""
    made = {op.path for op in operations if op.kind == "open"}
    made |= {op.other for op in operations if op.kind == "rename"}
    present = {str(path.relative_to(workdir)) for path in workdir.rglob("*") if path.is_file()}
    assert present <= made
