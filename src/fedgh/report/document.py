"""The result of a study as files: Markdown, CSV tables, and a page."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedgh.errors import ConfigError
from fedgh.extras import install, need_report
from fedgh.files import check_no_link, locked, make_folder, read_bytes, write_atomic
from fedgh.runs.folder import MAX_JSON
from fedgh.studies.reproduce import Result


def write(result: Result, folder: Path) -> list[Path]:
    """Write NAME.md, a CSV file for each table, and NAME.html; return the paths.

    There is no page if the packages for reports are not installed.
    """
    make_folder(folder)
    name = result.request.name
    text, page = folder / f"{name}.md", folder / f"{name}.html"
    pictures = _write_page(result, page)
    write_atomic(text, markdown(result, pictures or []).encode())
    tables = {folder / f"{'-'.join(filter(None, [name, s.name]))}.csv": s for s in result.sheets}
    for path, sheet in tables.items():
        write_atomic(path, sheet.csv().encode())
    return [text, *tables, *([] if pictures is None else [page])]


def _write_page(result: Result, path: Path) -> list[Path] | None:
    """Write the page and its figures; return None if the packages for them are not installed."""
    try:
        need_report()
    except ConfigError:
        return None
    from fedgh.report import study  # slow to import

    figures = path.parent / "figures"
    check_no_link(figures)
    return study.write(result, path, figures)


def write_reasons(path: Path, reasons: dict[str, str]) -> None:
    """Add the reasons why runs have no result to those that other processes wrote to the file."""
    if not reasons:
        return
    make_folder(path.parent)
    with locked(path.with_name(f".{path.name}.lock"), wait=True):
        all_reasons = {**read_reasons(path), **reasons}
        write_atomic(path, json.dumps(all_reasons, indent=2).encode() + b"\n")


def read_reasons(path: Path) -> dict[str, str]:
    """Return the reason, for each run, why it had no result when it was last tried."""
    try:
        content = json.loads(read_bytes(path, MAX_JSON))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): str(reason) for name, reason in content.items()}


def markdown(result: Result, pictures: Sequence[Path] = ()) -> str:
    """Return the complete result as Markdown, for a reader who has not seen it run."""
    parts = [f"# {result.study.title}", result.study.about.strip()]
    parts.append("\n".join(f"- {fact}" for fact in result.provenance()))
    first, *others = result.sheets
    parts.append(first.markdown().rstrip())
    parts += [f"![{picture.stem}](figures/{picture.name})" for picture in pictures]
    parts += [f"## {sheet.title}\n\n{sheet.markdown()}".rstrip() for sheet in others]
    if result.reasons:
        listed = "\n".join(f"- {run}: {reason}" for run, reason in result.reasons.items())
        parts.append(f"## Without a result\n\n{listed}")
    if result.not_run:
        parts.append("## Not run\n\n" + "\n".join(f"- {run}" for run in result.not_run))
    return "\n\n".join(parts) + "\n"


def closing(result: Result, files: Sequence[Path]) -> str:
    """Return the lines below the tables: conditions, missing runs, and paths of the files."""
    lines = result.conditions()
    lines += [f"no result: {run}: {reason}" for run, reason in result.reasons.items()]
    if result.not_run:
        lines.append(f"not run: {'; '.join(result.not_run)}")
    lines.append("written to " + ", ".join(map(str, files)))
    if all(path.suffix != ".html" for path in files):
        lines.append(f"for charts and a page, {install('report')}")
    return "\n".join(lines)
