"""A result as files: Markdown to read, CSV to compute with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgh.core.checkpoint import write_atomic
from fedgh.errors import ConfigError
from fedgh.paper.reproduce import Result
from fedgh.report.extra import need_report


def write(result: Result, folder: Path) -> list[Path]:
    """The result as NAME.md, a CSV file for each table, and NAME.html where that can be made."""
    folder.mkdir(parents=True, exist_ok=True)
    name = result.request.name
    text, page = folder / f"{name}.md", folder / f"{name}.html"
    pictures = _write_page(result, page)
    write_atomic(text, markdown(result, pictures or []).encode())
    tables = {folder / f"{'-'.join(filter(None, [name, s.name]))}.csv": s for s in result.sheets}
    for path, sheet in tables.items():
        write_atomic(path, sheet.csv().encode())
    return [text, *tables, *([] if pictures is None else [page])]


def _write_page(result: Result, path: Path) -> list[Path] | None:
    """The page, and its pictures; None where the packages for them are not installed."""
    try:
        need_report()
    except ConfigError:
        return None
    from fedgh.report import study  # slow to import

    return study.write(result, path, path.parent / "figures")


def keep_reasons(path: Path, reasons: dict[str, str]) -> None:
    """Remember why runs have no result: those that were tried now, and those tried before."""
    known = {**kept_reasons(path), **reasons}
    if known:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(known, indent=2).encode() + b"\n")


def kept_reasons(path: Path) -> dict[str, str]:
    """Why runs had no result when they were last tried."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(why) for name, why in known.items()} if isinstance(known, dict) else {}


def markdown(result: Result, pictures: Sequence[Path] = ()) -> str:
    """The whole result, for a reader who has not seen it run."""
    parts = [f"# {result.study.title}", result.study.about.strip()]
    parts.append("\n".join(provenance(result)))
    if result.changes:
        parts.append("Different from the paper's settings: " + "; ".join(result.changes) + ".")
    first, *others = result.sheets
    parts.append(first.markdown().rstrip())
    parts += [f"![{picture.stem}](figures/{picture.name})" for picture in pictures]
    parts += [f"## {sheet.title}\n\n{sheet.markdown()}".rstrip() for sheet in others]
    if result.reasons:
        listed = "\n".join(f"- {name}: {why}" for name, why in result.reasons.items())
        parts.append(f"## Without a result\n\n{listed}")
    if result.not_run:
        parts.append("## Not run\n\n" + "\n".join(f"- {name}" for name in result.not_run))
    return "\n\n".join(parts) + "\n"


def closing(result: Result, files: Sequence[Path]) -> str:
    """What a user has to know who has seen the tables."""
    lines = []
    if result.study.cases:
        lines.append(f"budget {result.request.budget}: {result.about_budget}")
    if result.changes:
        lines.append("different from the paper's settings: " + "; ".join(result.changes))
    lines += [f"no result: {name}: {why}" for name, why in result.reasons.items()]
    if result.not_run:
        lines.append(f"not run: {', '.join(result.not_run)}")
    lines.append("written to " + ", ".join(map(str, files)))
    return "\n".join(lines)


def provenance(result: Result) -> list[str]:
    """Which command made this, with what budget, where and when."""
    lines = [f"- {result.study.source}", f"- command: `{result.request.command()}`"]
    if result.study.cases:
        lines.append(f"- budget {result.request.budget}: {result.about_budget}")
    summaries: list[dict[str, Any]] = [run.summary() or {} for _, run in result.outcome.runs]
    if summaries:
        dates = sorted(summary["finished"][:10] for summary in summaries)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        machines = sorted({_machine(summary) for summary in summaries})
        minutes = sum(summary["seconds"] for summary in summaries) / 60
        lines.append(f"- runs: {len(summaries)}, {minutes:.0f} minutes in all, {when}")
        lines.append(f"- on {'; '.join(machines)}")
    return lines


def _machine(summary: dict[str, Any]) -> str:
    machine, versions = summary["machine"], summary["versions"]
    return (
        f"{machine['cores']} cores of {machine['processor']}, torch {versions['torch']}, "
        f"fedgh {versions['fedgh']}"
    )
