"""Pictures of the reconstructed images beside the true ones."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fedgh.audit.cases import AttackCase, ReconstructedImages
from fedgh.audit.images import tile
from fedgh.audit.result import Extractor, Picture

CLASSES = 2
"""Classes in the picture of samples."""

SAMPLES = 2
"""Samples of each of these classes."""


def pictures(
    made: Mapping[AttackCase, ReconstructedImages], classes: Sequence[str]
) -> dict[Literal["samples", "sizes"], Picture]:
    """Return both pictures; no picture if no images were reconstructed."""
    if not made:
        return {}
    return {"samples": _samples(made, classes), "sizes": _sizes(made, classes)}


def _samples(made: Mapping[AttackCase, ReconstructedImages], classes: Sequence[str]) -> Picture:
    """Return reconstructions of single samples, and of classes from their uploaded means."""
    extractors: list[Extractor] = [
        extractor for extractor in ("known", "unknown") if AttackCase(extractor) in made
    ]
    from_samples = [made[AttackCase(extractor, 1)] for extractor in extractors]
    from_means = [made[AttackCase(extractor)] for extractor in extractors]
    rows, names = [], []
    for label, name in enumerate(classes[:CLASSES]):
        mean = _positions(from_means[0], label)[0]
        for sample in _positions(from_samples[0], label)[:SAMPLES]:
            names.append(name)
            rows.append(
                [
                    from_samples[0].truth[sample],
                    *(attacked.images[sample] for attacked in from_samples),
                    from_means[0].truth[mean],
                    *(attacked.images[mean] for attacked in from_means),
                    from_means[0].baseline[mean],
                ]
            )
    columns = [
        "a training sample",
        *(f"reconstructed from its representation, extractor {one}" for one in extractors),
        "the mean image of all the client's samples of the class",
        *(f"reconstructed from their class mean, extractor {one}" for one in extractors),
        "the mean image of the attacker's own samples of the class",
    ]
    return Picture.of(names, columns, tile(rows))


def _sizes(made: Mapping[AttackCase, ReconstructedImages], classes: Sequence[str]) -> Picture:
    """Return reconstructions of one class, from means of more and more samples, per noise level."""
    known = [case for case in made if case.extractor == "known"]
    sizes = list(dict.fromkeys(case.size for case in known))
    levels = list(dict.fromkeys(case.level for case in known))
    rows = [[made[AttackCase(size=size)].truth[0] for size in sizes]]
    rows += [
        [made[AttackCase(size=size, level=level)].images[0] for size in sizes] for level in levels
    ]
    names = [
        "the mean image",
        *(f"reconstructed from the mean representation, {level}" for level in levels),
    ]
    columns = [f"{size or 'all'} samples of class {classes[0]}" for size in sizes]
    return Picture.of(names, columns, tile(rows))


def _positions(made: ReconstructedImages, label: int) -> list[int]:
    positions: list[int] = (made.labels == label).nonzero().flatten().tolist()
    return positions
