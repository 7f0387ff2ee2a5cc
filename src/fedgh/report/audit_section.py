"""The section about an audit: what uploads tell, in pictures, curves and tables."""

from collections.abc import Sequence

import altair as alt

from fedgh.audit.result import Audit, Means, Picture, Told, read
from fedgh.errors import RunError
from fedgh.report import audit_sheets
from fedgh.report.charts import AnyChart, Rows, wide
from fedgh.report.page import Figure, Image, Part, Section, of_sheet
from fedgh.report.png import png
from fedgh.runs.read import NamedRun

MAGNIFIED = 3
"""Pixels of the page for one of an image."""

SIMPLE = {"distance": "plain distance", "leverage": "leverage alone"}
"""Names of curves of attacks that use less than there is."""


def audit_section(runs: Sequence[NamedRun]) -> Section | None:
    """What audits of these runs found; None when there was none."""
    parts: list[Part] = []
    words: list[str] = []
    for number, run in enumerate(runs, 1):
        try:
            found = read(run.folder)
        except RunError as error:
            words.append(f"{run.label}: {error}.")
            continue
        if found is not None:
            label = f"{run.label}: " if len(runs) > 1 else ""
            words.append(label + _words(found))
            parts += _parts(found, label, f"-{number}")
    if not words:
        return None
    return Section("audit", "What uploads tell", "\n".join(words), parts)


def _words(audit: Audit) -> str:
    counts = " So is how many samples of each it has: the method sends that." * audit.sends_counts
    return (
        f"Attacks on the {_sent(audit)} of client {audit.client} (classes "
        f"{', '.join(audit.classes)}) after round {audit.round}. The attacker has "
        f"{audit.auxiliary} samples of these classes from other clients and none of this one. "
        f"{_knowledge(audit)}\n"
        "Which classes a client holds is visible by design: every mean or sum comes with its "
        f"label, and no noise hides that.{counts}\n"
        f"{_protection(audit)}With noise, one upload is (ε, δ)-private, δ = {audit.delta:g}, "
        f"vectors are clipped to {audit.clip:.3g}, and the attacker knows all of that. A number "
        "that says little is no proof: better attacks may exist. Differential privacy is one."
    )


def _sent(audit: Audit) -> str:
    if audit.attacked == "moments":
        return f"second moment of {audit.width} dimensions"
    return "class means"


def _knowledge(audit: Audit) -> str:
    if audit.attacked == "moments":
        return "It knows the feature map, as every client does. No image was tried to be made."
    only = "" if audit.reconstructed else " The data are no images, so none were made."
    if not audit.networks:
        return f"It has what makes the vectors (extractor known).{only}"
    return (
        "It has the client's network (extractor known), or only those of "
        f"{audit.networks} other clients (unknown).{only}"
    )


def _protection(audit: Audit) -> str:
    if audit.protected.open:
        return ""
    return f'This run protects its uploads: what it sent is "{audit.protected}" below. '


def _parts(audit: Audit, label: str, end: str) -> list[Part]:
    parts: list[Part] = []
    if "samples" in audit.pictures:
        parts.append(_image(audit.pictures["samples"], f"audit-samples{end}", label, "a sample of"))
    if "sizes" in audit.pictures:
        parts.append(_image(audit.pictures["sizes"], f"audit-sizes{end}", label, ""))
    if audit.reconstructed:
        caption = (
            f"{label}How much nearer to the mean image an attacker comes with the class mean than "
            "by its own mean image of the class. 0 is nothing gained. Unless it is unknown, the "
            "attacker has the extractor."
        )
        chart = _gains(audit)
        parts.append(Figure(f"audit-gain{end}", caption, chart, whole_width=True))
    for against, what in (
        ("left out", "training samples that are not behind it: what the mean itself tells"),
        ("held out", "test and validation samples: what an attacker would meet"),
        ("other clients", "samples of other clients"),
    ):
        rows = [row for row in audit.told if row.against == against and row.attack != "loss"]
        if rows:
            caption = f"{label}Samples behind an upload, told from {what}. 0.5 is guessing."
            name = f"audit-members-{against.replace(' ', '-')}{end}"
            parts.append(Figure(name, caption, _areas(rows)))
    parts.append(of_sheet(audit_sheets.overview(audit)))
    if audit.reconstructed:
        parts.append(of_sheet(audit_sheets.images(audit)))
    return [*parts, of_sheet(audit_sheets.members(audit))]


def _image(picture: Picture, name: str, label: str, what: str) -> Image:
    rows = "; ".join(dict.fromkeys(f"{what} {row}".strip() for row in picture.rows))
    caption = f"{label}Columns, from left: {'; '.join(picture.columns)}. Rows, from above: {rows}."
    content = png(picture.height, picture.width, picture.channels, picture.pixels)
    return Image(name, caption, "Images that attackers made.", content, MAGNIFIED * picture.width)


def _gains(audit: Audit) -> AnyChart:
    rows: Rows = [
        {
            "size": row.size,
            "line": _line(row),
            "gain": row.gain,
            "low": row.gain - row.gain_error,
            "high": row.gain + row.gain_error,
            "samples": audit_sheets.size_name(row),
        }
        for row in audit.reconstructed
    ]
    words = "Gain in PSNR over the number of samples behind a class mean."
    return _curves(rows, "gain", "gain in PSNR, dB", ".2f", words)


def _areas(told: Sequence[Told]) -> AnyChart:
    rows: Rows = [
        {
            "size": row.size,
            "line": SIMPLE.get(row.attack) or _line(row),
            "AUC": row.auc,
            "low": row.low,
            "high": row.high,
            "samples": audit_sheets.size_name(row),
        }
        for row in told
    ]
    words = "AUC over the number of samples behind an upload."
    return _curves(rows, "AUC", "AUC", ".3f", words)


def _line(row: Means) -> str:
    return "extractor unknown" if row.extractor == "unknown" else str(row.level)


def _curves(rows: Rows, value: str, title: str, form: str, description: str) -> AnyChart:
    """A line for each attacker and level, the same colour in every chart; strokes are intervals."""
    names = list(dict.fromkeys(row["line"] for row in rows))
    names.sort(key=lambda name: name in SIMPLE.values())  # last: not every chart has them
    axis = alt.Axis(grid=False, values=sorted({row["size"] for row in rows}), format=",d")
    near = alt.Scale(zero=False)
    base = alt.Chart({"values": rows}).encode(
        x=alt.X("size:Q", title="samples behind it", scale=alt.Scale(type="log"), axis=axis),
        color=alt.Color(
            "line:N",
            title=None,
            scale=alt.Scale(domain=names),
            legend=alt.Legend(orient="top", columns=3, symbolLimit=0),
        ),
        tooltip=[
            alt.Tooltip("line:N", title="attacker"),
            alt.Tooltip("samples:N"),
            alt.Tooltip(f"{value}:Q", format=form),
            alt.Tooltip("low:Q", format=form),
            alt.Tooltip("high:Q", format=form),
        ],
    )
    lines = base.mark_line(point=True, strokeWidth=2).encode(
        y=alt.Y(f"{value}:Q", title=title, scale=near)
    )
    spreads = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", scale=near), y2="high:Q")
    return wide(alt.layer(lines, spreads), description)
