"""The numbers of an audit as tables, for a terminal and for a page."""

from collections.abc import Iterable
from typing import TypeVar

from fedgh.audit.noise import Level
from fedgh.audit.result import Audit, Extractor, Means, Told
from fedgh.tables import Cell, Column, Sheet

Row = TypeVar("Row", bound=Means)

RATIO = "likelihood ratio"

MIDDLE = Level(protects="sample", epsilon=8)
"""The noise that the overview shows, unless the run has its own."""


def overview(audit: Audit) -> Sheet:
    """A row for each number of samples behind what was sent."""
    return (_of_moments if audit.attacked == "moments" else _of_means)(audit)


def _of_moments(audit: Audit) -> Sheet:
    """Who is told to be behind a second moment, without noise and with every noise."""
    levels = list(dict.fromkeys(row.level for row in audit.told if not row.level.open))
    columns = [
        Column("samples behind it"),
        Column("member, AUC", 3),
        Column("found at 1%", 3),
        Column("other clients", 3),
        Column("by leverage", 3),
        *(Column(f"{level}", 3) for level in levels),
    ]

    def told(attack: str, against: str = "held out") -> list[Told]:
        return [row for row in audit.told if (row.attack, row.against) == (attack, against)]

    best, others, plain = told(RATIO), told(RATIO, "other clients"), told("leverage")
    rows: list[list[Cell]] = []
    for size, name in _sizes(audit.told):
        known = [_one(some, size, "known", Level()) for some in (best, others, plain)]
        noisy = [_one(best, size, "known", level) for level in levels]
        areas = [None if row is None else row.auc for row in [*known, *noisy]]
        found = None if known[0] is None else known[0].tpr
        rows.append([name, areas[0], found, *areas[1:]])
    note = (
        f"A second moment of {audit.width} dimensions. member: how often a sample behind it scores "
        "higher than the client's held-out ones, or than those of other clients; 0.5 is guessing. "
        "found: the share of the samples behind it, with one false alarm in a hundred. by "
        "leverage: without samples to compare with. With noise, held-out samples."
    )
    return Sheet("overview", _title(audit), columns, rows, note)


def _of_means(audit: Audit) -> Sheet:
    """What is gained over knowing the class alone."""
    noise = MIDDLE if audit.protected.open else audit.protected
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
    who: list[tuple[Extractor, Level]] = [
        ("known", Level()),
        ("unknown", Level()),
        ("known", noise),
    ]
    held_out = [row for row in audit.told if row.against == "held out"]
    best = [row for row in held_out if row.attack == RATIO]
    distance = [row for row in held_out if row.attack == "distance"]
    rows: list[list[Cell]] = []
    for size, name in _sizes(audit.told):
        images = [_one(audit.reconstructed, size, *one) for one in who]
        members = [_one(best, size, *one) for one in who]
        plain = _one(distance, size, "known", Level())
        rows.append(
            [
                name,
                *(None if row is None else row.gain for row in images),
                *(None if row is None else row.auc for row in [*members, plain]),
            ]
        )
    note = (
        "image: how much nearer, in dB of PSNR, the reconstruction is to the mean image than the "
        "attacker's own mean image of the class; 0 is nothing gained. member: how often a training "
        "sample scores higher than a held-out one; 0.5 is guessing. The attacker has the client's "
        "extractor, or where it is unknown those of others."
    )
    return Sheet("overview", _title(audit), columns, rows, note)


def _title(audit: Audit) -> str:
    return f"client {audit.client}, classes {', '.join(audit.classes)}"


def images(audit: Audit) -> Sheet:
    """All reconstructions."""
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
    """All membership tests."""
    titles = ["attack", "members against", "extractor", "noise", "samples behind it"]
    columns = [
        *map(Column, titles),
        Column("AUC", 3),
        Column("from", 3),
        Column("to", 3),
        Column("found at 1% false alarms", 3),
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
        "validation samples. The interval is DeLong's, 95%. The loss needs the model, but no "
        "upload."
    )
    return Sheet("members", "Members told from others", columns, rows, note)


def size_name(row: Means) -> str:
    """How many samples are behind a mean or a second moment."""
    return f"all ({row.size})" if row.everything else f"{row.size}"


def _named(row: Means) -> list[Cell]:
    return [row.extractor, str(row.level), size_name(row)]


def _sizes(rows: Iterable[Told]) -> list[tuple[tuple[int, bool], str]]:
    found = {(row.size, row.everything): size_name(row) for row in rows}
    return sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))


def _one(
    rows: Iterable[Row], size: tuple[int, bool], extractor: Extractor, level: Level
) -> Row | None:
    same = (
        row
        for row in rows
        if (row.size, row.everything) == size and (row.extractor, row.level) == (extractor, level)
    )
    return next(same, None)
