"""What attackers have made, side by side with the truth."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fedgh.audit.cases import AttackCase, Made
from fedgh.audit.images import tiled
from fedgh.audit.result import Extractor, Picture

CLASSES = 2
SAMPLES = 2
"""In the picture of samples: of each class so many."""


def pictures(
    made: Mapping[AttackCase, Made], classes: Sequence[str]
) -> dict[Literal["samples", "sizes"], Picture]:
    """Both pictures; none where no images were made."""
    if not made:
        return {}
    return {"samples": _samples(made, classes), "sizes": _sizes(made, classes)}


def _samples(made: Mapping[AttackCase, Made], classes: Sequence[str]) -> Picture:
    """Some samples from their own vectors, and their classes from the means that are sent."""
    attackers: list[Extractor] = [w for w in ("known", "unknown") if AttackCase(w) in made]
    single = [made[AttackCase(who, 1)] for who in attackers]
    whole = [made[AttackCase(who)] for who in attackers]
    rows, names = [], []
    for label, name in enumerate(classes[:CLASSES]):
        mean = _places(whole[0], label)[0]
        for one in _places(single[0], label)[:SAMPLES]:
            names.append(name)
            rows.append(
                [
                    single[0].truth[one],
                    *(by.images[one] for by in single),
                    whole[0].truth[mean],
                    *(by.images[mean] for by in whole),
                    whole[0].without[mean],
                ]
            )
    columns = [
        "a training sample",
        *(f"made from its representation, extractor {who}" for who in attackers),
        "the mean of all the client's samples of the class",
        *(f"made from their LAR, extractor {who}" for who in attackers),
        "the mean of the attacker's own samples of the class",
    ]
    return Picture.of(names, columns, tiled(rows))


def _sizes(made: Mapping[AttackCase, Made], classes: Sequence[str]) -> Picture:
    """One class from means of ever more samples, with ever more noise."""
    known = [case for case in made if case.extractor == "known"]
    sizes = list(dict.fromkeys(case.size for case in known))
    levels = list(dict.fromkeys(case.level for case in known))
    rows = [[made[AttackCase(size=size)].truth[0] for size in sizes]]
    rows += [
        [made[AttackCase(size=size, level=level)].images[0] for size in sizes] for level in levels
    ]
    names = ["the mean image", *(f"made from the mean representation, {level}" for level in levels)]
    columns = [f"{size or 'all'} of class {classes[0]}" for size in sizes]
    return Picture.of(names, columns, tiled(rows))


def _places(made: Made, label: int) -> list[int]:
    found: list[int] = (made.labels == label).nonzero().flatten().tolist()
    return found
