"""The numbers of an audit as tables, for a terminal and for a page."""

from collections.abc import Iterable
from typing import TypeVar

from fedgh.audit.noise import Level
from fedgh.audit.result import AttackedUpload, Audit, Extractor, MembershipResult
from fedgh.tables import Cell, Column, Sheet

Row = TypeVar("Row", bound=AttackedUpload)

RATIO = "likelihood ratio"

MIDDLE = Level(protects="sample", epsilon=8)
"""The noise level that the overview shows, unless the run itself adds noise."""


def overview(audit: Audit) -> Sheet:
    """Return a table with a row for each number of samples behind an upload."""
    return (_of_moments if audit.attacked == "moments" else _of_means)(audit)


def _of_moments(audit: Audit) -> Sheet:
    """Return membership results for a second moment, without noise and with each noise level."""
    levels = list(dict.fromkeys(row.level for row in audit.told if not row.level.noiseless))
    columns = [
        Column("samples behind it"),
        Column("member, AUC", 3),
        Column("found at 1%", 3),
        Column("other clients", 3),
        Column("by leverage", 3),
        *(Column(f"{level}", 3) for level in levels),
    ]

    def results(attack: str, against: str = "held out") -> list[MembershipResult]:
        return [row for row in audit.told if (row.attack, row.against) == (attack, against)]

    ratio, others, simple = results(RATIO), results(RATIO, "other clients"), results("leverage")
    rows: list[list[Cell]] = []
    for size, name in _sizes(audit.told):
        noiseless = [_find(group, size, "known", Level()) for group in (ratio, others, simple)]
        noisy = [_find(ratio, size, "known", level) for level in levels]
        areas = [None if row is None else row.auc for row in [*noiseless, *noisy]]
        detected = None if noiseless[0] is None else noiseless[0].tpr
        rows.append([name, areas[0], detected, *areas[1:]])
    note = (
        f"A second moment of {audit.width} dimensions. member: how often a sample behind it scores "
        "higher than a held-out sample of the client, or than a sample of other clients; 0.5 is "
        "guessing. found: the share of members that is detected at a false positive rate of 1%. by "
        "leverage: without samples to compare with. The columns with noise compare with held-out "
        "samples."
    )
    return Sheet("overview", _title(audit), columns, rows, note)


def _of_means(audit: Audit) -> Sheet:
    """Return the gains of attacks on class means over knowing only the class."""
    noise = MIDDLE if audit.protected.noiseless else audit.protected
    columns = [
        Column("samples behind a mean"),
        Column("image, dB", signed=True),
        Column("unknown", signed=True),
        Column(f"{noise}", signed=True),
        Column("member, AUC", 3),
        Column("unknown", 3),
        Column(f"{noise}", 3),
        Column("by distance", 3),
    ]
    attackers: list[tuple[Extractor, Level]] = [
        ("known", Level()),
        ("unknown", Level()),
        ("known", noise),
    ]
    held_out = [row for row in audit.told if row.against == "held out"]
    ratio = [row for row in held_out if row.attack == RATIO]
    distance = [row for row in held_out if row.attack == "distance"]
    rows: list[list[Cell]] = []
    for size, name in _sizes(audit.told):
        images = [_find(audit.reconstructed, size, *attacker) for attacker in attackers]
        members = [_find(ratio, size, *attacker) for attacker in attackers]
        simple = _find(distance, size, "known", Level())
        rows.append(
            [
                name,
                *(None if row is None else row.gain for row in images),
                *(None if row is None else row.auc for row in [*members, simple]),
            ]
        )
    note = (
        "image: PSNR of the reconstruction to the true mean image, less the PSNR of the attacker's "
        "own mean image of the class; 0 means no gain. member: how often a training sample scores "
        "higher than a held-out one; 0.5 is guessing. The attacker has the client's extractor, or "
        'in the columns "unknown" extractors of other clients.'
    )
    return Sheet("overview", _title(audit), columns, rows, note)


def _title(audit: Audit) -> str:
    return f"client {audit.client}, classes {', '.join(audit.classes)}"


def images(audit: Audit) -> Sheet:
    """Return a table of all reconstructions."""
    titles = ["extractor", "noise", "samples behind a mean"]
    columns = [
        *map(Column, titles),
        Column("PSNR"),
        Column("without the mean"),
        Column("gain", signed=True),
        Column("± s.e."),
        Column("SSIM", 3),
        Column("without the mean", 3),
        Column("PSNR to the nearest sample"),
        Column("without the mean"),
        Column("means", 0),
    ]
    rows: list[list[Cell]] = [
        [
            *_named(row),
            row.psnr,
            row.psnr_without,
            row.gain,
            row.gain_error,
            row.ssim,
            row.ssim_without,
            row.nearest,
            row.nearest_without,
            row.targets,
        ]
        for row in audit.reconstructed
    ]
    return Sheet("images", "Images from class means", columns, rows, "PSNR in dB.")


def members(audit: Audit) -> Sheet:
    """Return a table of all membership tests."""
    titles = ["attack", "members against", "extractor", "noise", "samples behind it"]
    columns = [
        *map(Column, titles),
        Column("AUC", 3),
        Column("from", 3),
        Column("to", 3),
        Column("found at 1% false positives", 3),
        Column("members", 0),
        Column("others", 0),
    ]
    rows: list[list[Cell]] = [
        [
            row.attack,
            row.against,
            *_named(row),
            row.auc,
            row.low,
            row.high,
            row.tpr,
            row.members,
            row.others,
        ]
        for row in audit.told
    ]
    note = (
        "Left out: training samples that are not behind the mean. Held out: the client's test and "
        "validation samples. From and to are the 95% interval of DeLong. The attack by loss needs "
        "the client's model, but no upload."
    )
    return Sheet("members", "Membership tests", columns, rows, note)


def size_name(row: AttackedUpload) -> str:
    """Return the number of samples behind a mean or a second moment as text."""
    return f"all ({row.size})" if row.everything else f"{row.size}"


def _named(row: AttackedUpload) -> list[Cell]:
    return [row.extractor, str(row.level), size_name(row)]


def _sizes(rows: Iterable[MembershipResult]) -> list[tuple[tuple[int, bool], str]]:
    names = {(row.size, row.everything): size_name(row) for row in rows}
    return sorted(names.items(), key=lambda item: (item[0][1], item[0][0]))


def _find(
    rows: Iterable[Row], size: tuple[int, bool], extractor: Extractor, level: Level
) -> Row | None:
    matching = (
        row
        for row in rows
        if (row.size, row.everything) == size and (row.extractor, row.level) == (extractor, level)
    )
    return next(matching, None)
