"""Writing of reports: `fedgh report`, and the report after a run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedgh.errors import FedghError, RunError, one_line
from fedgh.extras import need_report
from fedgh.files import make_folder
from fedgh.report.printed import study_result
from fedgh.runs.folder import RunFolder
from fedgh.runs.read import NamedRun, name_runs
from fedgh.studies import recorded, sweep_folder
from fedgh.trained.clients import TrainedFederation
from fedgh.trained.confusion import Confusion, measure
from fedgh.training.run import Run
from fedgh.trust import FOREIGN, OWN, Trust

if TYPE_CHECKING:
    from fedgh.report.page import Page


def write_page(
    paths: Sequence[Path],
    out: Path | None = None,
    figures: Path | None = None,
    kind: str = "svg",
    find_confusion: Callable[[RunFolder], Confusion] | None = None,
    trust: Trust = FOREIGN,
) -> Path:
    """Write the page about these runs, and its charts into the folder `figures`; return its path.

    A single path may also be the folder of a comparison, of a search or of a study. By default the
    page is in the folder that it is about, and the page of several runs in the current folder. A
    missing confusion matrix is measured, with the code and data that the run names if `trust`
    allows them.
    """
    need_report()
    from fedgh.report import page  # slow to import
    from fedgh.report.figures import save_all

    report, usual = _page(paths, find_confusion, trust)
    out = out or usual
    make_folder(out.parent)
    page.write(report, out)
    if figures is not None:
        save_all(report, figures, kind)
    return out


def _page(
    paths: Sequence[Path], find_confusion: Callable[[RunFolder], Confusion] | None, trust: Trust
) -> tuple["Page", Path]:
    """Return the page about these runs or this folder of runs, and its usual file."""
    from fedgh.report import study
    from fedgh.report.run_page import run_page
    from fedgh.report.sweep_page import sweep_page

    first, *others = paths
    if not others and sweep_folder.holds_sweep(first):
        return sweep_page(sweep_folder.read(first)), first / "report.html"
    if not others and (text := recorded.find_text(first)) is not None:
        result = study_result(text, trusted=trust.everything)
        return study.page(result), text.with_suffix(".html")
    folder = first if not others else Path()
    page = run_page(_named(paths), find_confusion or partial(measure, trust=trust))
    return page, folder / "report.html"


def _named(paths: Sequence[Path]) -> list[NamedRun]:
    """Return the runs in these folders; raise RunError if one has another content."""
    for path in paths:
        if len(paths) > 1 and sweep_folder.holds_sweep(path):
            raise RunError(f"{path} is the folder of a comparison; its page needs no other folder")
        if not (path / "config.toml").exists() and any(path.glob("*/config.toml")):
            raise RunError(
                f"{path} has runs, but not their comparison, which is written at its end; to show "
                f"the runs so far: fedgh report {path}/*-seed*"
            )
    return name_runs(paths)


def write_report(run: TrainedFederation | Run, out: str | Path | None = None) -> Path:
    """Write the page about a run to `out`, by default into its folder; return the path."""
    trained = run if isinstance(run, TrainedFederation) else TrainedFederation(run)
    return write_page(
        [trained.folder.path],
        None if out is None else Path(out),
        find_confusion=lambda folder: measure(
            folder, trained.checkpoint if trained.checkpoint.data else None, trust=trained.trust
        ),
    )


def report_after(run: RunFolder, trust: Trust = OWN) -> str:
    """Write the report of a finished run; return a line with its path, or with the error.

    No error is raised, because the run itself succeeded.
    """
    return _line_after(run.path, lambda _: measure(run, trust=trust))


def sweep_report_after(folder: Path) -> str:
    """Do the same for a comparison or a search."""
    return _line_after(folder)


def _line_after(
    folder: Path, find_confusion: Callable[[RunFolder], Confusion] | None = None
) -> str:
    try:
        return f"report     {write_page([folder], find_confusion=find_confusion)}"
    except FedghError as error:
        return f"report     not written: {error}"
    except KeyboardInterrupt:
        return f"report     not written; write it with: fedgh report {folder}"
    except Exception as error:  # any error, because the runs themselves are finished and stored
        return f"report     not written: {one_line(error)}"
