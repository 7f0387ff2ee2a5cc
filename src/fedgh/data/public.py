"""Public data: samples that the server, or every client as well, knows beside private ones.

They are held out of the data that are dealt, or drawn from another data set. Either way none of
them is also a private sample. Their labels are hidden unless a method declares that it reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedgh.core.rng import stream
from fedgh.core.types import Examples
from fedgh.data.partition import Partition
from fedgh.data.sources import SOURCES, Source, digest_of, row_digests
from fedgh.errors import ConfigError

HELD_OUT = "held-out"

KNOWN_NAMES = ("none", HELD_OUT, *(name for name in SOURCES if name != "private"))
"""Values of `public.name`."""

HIDDEN = -1
"""The label of a sample whose class is not told."""


@dataclass(frozen=True)
class PublicData:
    """Public samples: inputs [n, ...], their classes [n] or -1, and a fingerprint of both."""

    name: str
    x: Tensor
    y: Tensor
    digest: bytes

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labelled(self) -> bool:
        """True if their classes are told."""
        return bool((self.y != HIDDEN).all())

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs, and of the classes where these are told."""
        return self.x.nbytes + (self.y.nbytes if self.labelled else 0)

    def examples(self) -> Examples:
        """All of them, as a view that clients and the server can share."""
        return Examples(self.x, self.y, self._index)

    @cached_property
    def _index(self) -> Tensor:
        return torch.arange(len(self))


NO_ROWS = torch.empty(0, dtype=torch.int64)


def publish(source: Source, rows: Tensor, name: str, *, labels: bool) -> PublicData:
    """Make these rows of a data set public, with or without their classes."""
    chosen = Source(name, source.x[rows], source.y[rows], source.class_names)
    y = chosen.y if labels else torch.full_like(chosen.y, HIDDEN)
    return PublicData(name, chosen.x, y, digest_of(chosen.x, y))


def draw(source: Source, samples: int, seed: int, *, private: Sequence[Source]) -> Tensor:
    """Draw rows of a data set at random, without those that are private samples as well.

    CIFAR-10 and CIFAR-100, for example, have three images in common.
    """
    order = torch.randperm(len(source), generator=stream(seed, "public"))
    for own in private:
        if len(own):
            apart = torch.from_numpy(~np.isin(source.row_digests, own.row_digests))
            order = order[apart[order]]
    if samples > len(order):
        raise ConfigError(
            f"public.samples = {samples}: {source.name} has {len(order)} samples that are not also "
            "private; lower public.samples, or choose other public data"
        )
    return order[:samples]


def hold_out(source: Source, samples: int, seed: int) -> Tensor:
    """Draw rows with as many of each class; where that leaves a remainder, some have one more.

    Inputs that are in the data more than once stay private: another client might have the other.
    """
    rng = stream(seed, "public")
    _, place, times = np.unique(source.row_digests, return_inverse=True, return_counts=True)
    once = torch.from_numpy(times[place] == 1).nonzero().flatten()
    shuffled = once[torch.randperm(len(once), generator=rng)]
    classes = source.y.unique()
    classes = classes[torch.randperm(len(classes), generator=rng)]
    each, more = divmod(samples, max(1, len(classes)))
    by_class = [shuffled[source.y[shuffled] == label] for label in classes.tolist()]
    if not by_class or any(len(rows) < each + (k < more) for k, rows in enumerate(by_class)):
        most = min(map(len, by_class), default=0) * len(by_class)
        raise ConfigError(
            f"public.samples = {samples}: {source.name} has {len(source)} samples, of which "
            f"{most} can be held out with as many of each class; lower public.samples"
        )
    rows = torch.cat([rows[: each + (k < more)] for k, rows in enumerate(by_class)])
    return rows[torch.randperm(len(rows), generator=rng)]


def check_classes(public: Source, names: Sequence[str]) -> None:
    """Refuse labels that mean something else than those of the private data."""
    if public.class_names != tuple(names):
        raise ConfigError(
            f"public.name: the method reads labels, but the classes of {public.name} "
            f"({_some(public.class_names)}) are not those of the data ({_some(names)}); use data "
            f"with these classes, or public.name = '{HELD_OUT}'"
        )


def check_inputs(public: PublicData, source: Source) -> None:
    """Refuse public inputs that a network for the private ones cannot take.

    Of data that are elsewhere the type is not known, and perhaps no shape either.
    """
    other_shape = source.shape not in ((), tuple(public.x.shape[1:]))
    other_type = len(source) > 0 and source.x.dtype != public.x.dtype
    if other_shape or other_type:
        raise ConfigError(
            f"public.name = '{public.name}': its inputs are {_kind(public.x)}, those of the data "
            f"{_kind(source.x)}; choose public data of the same shape and type (images in a "
            "folder are scaled to data.image_size)"
        )


def check_apart(public: PublicData, sources: Sequence[Source], partition: Partition) -> None:
    """Refuse public samples that are also private ones: they would be trained and tested on."""
    private = [source.row_digests for source in sources]
    if len(sources) == 1:
        private = [private[0][partition.order.numpy()]]
    both = int(np.isin(row_digests(public.x), np.concatenate(private)).sum())
    if both:
        raise ConfigError(
            f"public.name = '{public.name}': {both} of its {len(public)} samples are private "
            "samples of clients as well; take them out of one of the two, or choose other public "
            "data"
        )


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
