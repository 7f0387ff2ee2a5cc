"""The tables of a comparison, a search or a study as text for a paper or a program."""

from pathlib import Path

from fedgh.choices import TableFormat
from fedgh.errors import ConfigError, RunError, printable
from fedgh.formats import notes_of
from fedgh.report import document
from fedgh.studies import recorded, statistics, sweep_folder, sweep_sheets
from fedgh.studies.reproduce import Result, collect
from fedgh.tables import Sheet


def printed(path: Path, kind: TableFormat, trusted: bool = False) -> str:
    """Return the tables in a format; CSV has only the first, in full precision.

    Text about a study begins with its command, budget and machine, in LaTeX as a comment. The
    folder may come from a remote party: control characters, which a terminal would obey, are
    replaced by spaces.

    Raise ConfigError if the folder is that of a single run, RunError if no run has a result.
    """
    text = _tables(path, kind, trusted)
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def _tables(path: Path, kind: TableFormat, trusted: bool) -> str:
    if sweep_folder.holds_sweep(path):
        sweep = sweep_folder.read(path)
        if not sweep.rows:
            first, *_ = *notes_of(sweep.missing.items()), "it names no run"
            raise RunError(f"{path} has no result for a table; {printable(first)}")
        if kind == "csv":
            return statistics.rows_csv(sweep.rows)
        return _text(sweep_sheets.sheets(sweep), kind)
    text = recorded.find_text(path)
    if text is None:
        raise ConfigError(
            f"--format {kind} prints the table of a comparison; {path} is no folder of "
            "`fedgh compare`, `tune` or `reproduce`"
        )
    result = study_result(text, trusted)
    if kind == "csv":
        return result.sheets[0].csv()
    mark, end = ("% ", "") if kind == "latex" else ("- ", "\n")
    facts = "".join(f"{mark}{' '.join(fact.split())}\n" for fact in result.provenance())
    return facts + end + _text(result.sheets, kind)


def study_result(text: Path, trusted: bool) -> Result:
    """Return the result of the study that a text describes, from the runs beside it."""
    request = recorded.read_request(text, trusted)
    reasons = document.read_reasons(text.with_name(f"{request.name}.missing.json"))
    return collect(request, text.parent.parent, reasons)


def _text(sheets: list[Sheet], kind: TableFormat) -> str:
    if kind == "latex":
        return "\n".join(
            ["% \\usepackage{booktabs,graphicx}", *(sheet.latex() for sheet in sheets)]
        )
    return "\n".join(f"## {sheet.title}\n\n{sheet.markdown()}" for sheet in sheets)
