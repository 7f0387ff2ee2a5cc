"""The section of a report about audits, with pictures, charts and tables."""

from collections.abc import Sequence

import altair as alt

from fedgh.audit.result import AttackedUpload, Audit, MembershipResult, Picture, read
from fedgh.errors import RunError
from fedgh.report import audit_sheets
from fedgh.report.charts import AnyChart, Rows, wide
from fedgh.report.page import Figure, Image, Part, Section, sheet_table
from fedgh.report.png import png
from fedgh.runs.read import NamedRun

MAGNIFICATION = 3
"""Pixels on the page for one pixel of an image."""

SIMPLE_ATTACKS = {"distance": "plain distance", "leverage": "leverage alone"}
"""Attacks that use only a part of the information in an upload, with their names in charts."""


def audit_section(runs: Sequence[NamedRun]) -> Section | None:
    """Return the section about the audits of these runs; None if no run was audited."""
    parts: list[Part] = []
    texts: list[str] = []
    for number, run in enumerate(runs, 1):
        try:
            audit = read(run.folder)
        except RunError as error:
            texts.append(f"{run.label}: {error}.")
            continue
        if audit is not None:
            label = f"{run.label}: " if len(runs) > 1 else ""
            texts.append(label + _text(audit))
            parts += _parts(audit, label, f"-{number}")
    if not texts:
        return None
    return Section("audit", "What uploads reveal", "\n".join(texts), parts)


def _text(audit: Audit) -> str:
    counts = ""
    if audit.sends_counts:
        counts = " The number of samples of each class is visible, too: the method sends it."
    return (
        f"Attacks on the {_upload(audit)} of client {audit.client} (classes "
        f"{', '.join(audit.classes)}) after round {audit.round}. The attacker has "
        f"{audit.auxiliary} samples of these classes from other clients and none of this client. "
        f"{_attacker(audit)}\n"
        "The classes of a client are visible by design: every mean or sum is sent with its label, "
        f"and no noise hides the labels.{counts}\n"
        f"{_protection(audit)}With noise, one upload is (ε, δ)-private with δ = {audit.delta:g}, "
        f"vectors are clipped to {audit.clip:.3g}, and the attacker knows ε, δ and the clipping. "
        "A failed attack does not prove that an upload is safe, because better attacks may exist; "
        "differential privacy is a proof."
    )


def _upload(audit: Audit) -> str:
    if audit.attacked == "moments":
        return f"second moment of {audit.width} dimensions"
    return "class means"


def _attacker(audit: Audit) -> str:
    if audit.attacked == "moments":
        return "It has the feature map, like every client. The audit reconstructs no images here."
    only = "" if audit.reconstructed else " The data are not images, so none are reconstructed."
    if not audit.networks:
        return f"It can compute the vectors of its own samples (extractor known).{only}"
    return (
        "It has the client's network (extractor known), or only networks of "
        f"{audit.networks} other clients (extractor unknown).{only}"
    )


def _protection(audit: Audit) -> str:
    if audit.protected.noiseless:
        return ""
    return f'This run adds noise to its uploads, at the level "{audit.protected}" below. '


def _parts(audit: Audit, label: str, suffix: str) -> list[Part]:
    """Return the images, charts and tables of an audit; their ids end with `suffix`."""
    parts: list[Part] = []
    if "samples" in audit.pictures:
        parts.append(
            _image(audit.pictures["samples"], f"audit-samples{suffix}", label, "a sample of")
        )
    if "sizes" in audit.pictures:
        parts.append(_image(audit.pictures["sizes"], f"audit-sizes{suffix}", label, ""))
    if audit.reconstructed:
        caption = (
            f"{label}Gain of a reconstruction from a class mean: its PSNR to the true mean image, "
            "minus the PSNR of the mean image of the attacker's own samples of the class. 0 means "
            "that the upload did not help the attacker. The attacker has the extractor, except in "
            'the line "extractor unknown".'
        )
        chart = _gain_chart(audit)
        parts.append(Figure(f"audit-gain{suffix}", caption, chart, whole_width=True))
    for against, explanation in (
        (
            "left out",
            "training samples of the client that were left out of it. This shows what the mean "
            "itself reveals",
        ),
        (
            "held out",
            "validation and test samples of the client. This is the situation of a real attacker",
        ),
        ("other clients", "samples of other clients"),
    ):
        rows = [row for row in audit.told if row.against == against and row.attack != "loss"]
        if rows:
            caption = (
                f"{label}AUC of an attack that separates the samples behind an upload (those that "
                f"it was computed from) from {explanation}. An AUC of 0.5 is guessing."
            )
            name = f"audit-members-{against.replace(' ', '-')}{suffix}"
            parts.append(Figure(name, caption, _auc_chart(rows)))
    parts.append(sheet_table(audit_sheets.overview(audit)))
    if audit.reconstructed:
        parts.append(sheet_table(audit_sheets.images(audit)))
    return [*parts, sheet_table(audit_sheets.members(audit))]


def _image(picture: Picture, name: str, label: str, row_prefix: str) -> Image:
    rows = "; ".join(dict.fromkeys(f"{row_prefix} {row}".strip() for row in picture.rows))
    columns = "; ".join(picture.columns)
    caption = f"{label}Columns, from the left: {columns}. Rows, from the top: {rows}."
    content = png(picture.height, picture.width, picture.channels, picture.pixels)
    alt_text = "Images that attackers reconstructed."
    return Image(name, caption, alt_text, content, MAGNIFICATION * picture.width)


def _gain_chart(audit: Audit) -> AnyChart:
    rows: Rows = [
        {
            "size": row.size,
            "line": _line_name(row),
            "gain": row.gain,
            "low": row.gain - row.gain_error,
            "high": row.gain + row.gain_error,
            "samples": audit_sheets.size_name(row),
        }
        for row in audit.reconstructed
    ]
    description = "Gain in PSNR by the number of samples behind a class mean."
    return _line_chart(rows, "gain", "gain in PSNR, dB", ".2f", description)


def _auc_chart(results: Sequence[MembershipResult]) -> AnyChart:
    rows: Rows = [
        {
            "size": row.size,
            "line": SIMPLE_ATTACKS.get(row.attack) or _line_name(row),
            "AUC": row.auc,
            "low": row.low,
            "high": row.high,
            "samples": audit_sheets.size_name(row),
        }
        for row in results
    ]
    description = "AUC by the number of samples behind an upload."
    return _line_chart(rows, "AUC", "AUC", ".3f", description)


def _line_name(row: AttackedUpload) -> str:
    return "extractor unknown" if row.extractor == "unknown" else str(row.level)


def _line_chart(
    rows: Rows, value: str, title: str, number_format: str, description: str
) -> AnyChart:
    """Return a chart with a line for each attacker and noise level, and with intervals.

    A line has the same colour in every chart.
    """
    names = list(dict.fromkeys(row["line"] for row in rows))
    # Simple attacks come last, because not every chart has them and colours follow the order.
    names.sort(key=lambda name: name in SIMPLE_ATTACKS.values())
    axis = alt.Axis(grid=False, values=sorted({row["size"] for row in rows}), format=",d")
    no_zero = alt.Scale(zero=False)
    base = alt.Chart({"values": rows}).encode(
        x=alt.X(
            "size:Q", title="samples behind the upload", scale=alt.Scale(type="log"), axis=axis
        ),
        color=alt.Color(
            "line:N",
            title=None,
            scale=alt.Scale(domain=names),
            legend=alt.Legend(orient="top", columns=3, symbolLimit=0),
        ),
        tooltip=[
            alt.Tooltip("line:N", title="attacker"),
            alt.Tooltip("samples:N"),
            alt.Tooltip(f"{value}:Q", format=number_format),
            alt.Tooltip("low:Q", format=number_format),
            alt.Tooltip("high:Q", format=number_format),
        ],
    )
    lines = base.mark_line(point=True, strokeWidth=2).encode(
        y=alt.Y(f"{value}:Q", title=title, scale=no_zero)
    )
    intervals = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", scale=no_zero), y2="high:Q")
    return wide(alt.layer(lines, intervals), description)
