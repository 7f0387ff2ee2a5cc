"""Writing of reports: `fedgh report`, and the report after a run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fedgh.errors import FedghError, one_line
from fedgh.extras import need_report
from fedgh.files import make_folder
from fedgh.runs.folder import RunFolder
from fedgh.trained.clients import TrainedFederation
from fedgh.trained.confusion import Confusion, measure
from fedgh.training.run import Run
from fedgh.trust import FOREIGN, OWN, Trust


def write_page(
    paths: Sequence[Path],
    out: Path | None = None,
    figures: Path | None = None,
    kind: str = "svg",
    find_confusion: Callable[[RunFolder], Confusion] | None = None,
    trust: Trust = FOREIGN,
) -> Path:
    """Write the page about these runs, and its charts into the folder `figures`; return its path.

    By default the page of one run is in its folder, and the page of several runs in the current
    folder. A missing confusion matrix is measured, with the code and data that the run names if
    `trust` allows them.
    """
    need_report()
    from fedgh.report import page  # slow to import
    from fedgh.report.figures import save_all
    from fedgh.report.run_page import run_page
    from fedgh.runs.read import name_runs

    report = run_page(name_runs(paths), find_confusion or partial(measure, trust=trust))
    out = out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    make_folder(out.parent)
    page.write(report, out)
    if figures is not None:
        save_all(report, figures, kind)
    return out


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
    try:
        page = write_page([run.path], find_confusion=lambda _: measure(run, trust=trust))
        return f"report     {page}"
    except FedghError as error:
        return f"report     not written: {error}"
    except KeyboardInterrupt:
        return f"report     not written; write it with: fedgh report {run.path}"
    except Exception as error:  # any error, because the run itself is finished and stored
        return f"report     not written: {one_line(error)}"
