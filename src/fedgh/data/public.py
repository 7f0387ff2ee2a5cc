"""Public data: samples known to the server, or to the server and all clients.

They are held out before the partition, drawn from another data set, or random inputs. In all cases
none of them is also a private sample. Their labels are hidden unless the method declares that it
reads them.
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

NOISE = "noise"

KNOWN_NAMES = ("none", HELD_OUT, NOISE, *(name for name in SOURCES if name != "private"))
"""Values of `public.name`."""

HIDDEN = -1
"""The label of a sample whose class is hidden."""


@dataclass(frozen=True)
class PublicData:
    """Public samples: inputs [n, ...], their classes [n] or -1, and a digest of both."""

    name: str
    x: Tensor
    y: Tensor
    digest: bytes

    def __len__(self) -> int:
        return len(self.y)

    @property
    def labelled(self) -> bool:
        """True if no class is hidden."""
        return bool((self.y != HIDDEN).all())

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs, and of the classes unless they are hidden."""
        return self.x.nbytes + (self.y.nbytes if self.labelled else 0)

    def examples(self) -> Examples:
        """Return all samples, as a view that clients and the server share."""
        return Examples(self.x, self.y, self._index)

    @cached_property
    def _index(self) -> Tensor:
        return torch.arange(len(self))


NO_ROWS = torch.empty(0, dtype=torch.int64)


def publish(source: Source, rows: Tensor, name: str, *, labels: bool) -> PublicData:
    """Return these rows of a data set as public data, with or without their classes."""
    chosen = Source(name, source.x[rows], source.y[rows], source.class_names)
    y = chosen.y if labels else torch.full_like(chosen.y, HIDDEN)
    return PublicData(name, chosen.x, y, digest_of(chosen.x, y))


def draw(source: Source, samples: int, seed: int, *, private: Sequence[Source]) -> Tensor:
    """Return random rows of a data set that are not private samples as well.

    CIFAR-10 and CIFAR-100, for example, have three images in common. Raise ConfigError if there are
    too few.
    """
    order = torch.randperm(len(source), generator=stream(seed, "public"))
    for own in private:
        if len(own):
            disjoint = torch.from_numpy(~np.isin(source.row_digests, own.row_digests))
            order = order[disjoint[order]]
    if samples > len(order):
        raise ConfigError(
            f"public.samples = {samples}: {source.name} has {len(order)} samples that are not also "
            "private; lower public.samples, or choose other public data"
        )
    return order[:samples]


def noise(source: Source, samples: int, seed: int) -> Source:
    """Return random inputs of the shape and type of a data set: the control for public data.

    Bytes are uniform, other numbers standard normal. They have no classes.
    """
    rng, shape = stream(seed, "public"), (samples, *source.shape)
    if source.x.dtype == torch.uint8:
        x = torch.randint(256, shape, generator=rng, dtype=torch.uint8)
    else:
        x = torch.randn(shape, generator=rng)
    return Source(NOISE, x, torch.zeros(samples, dtype=torch.int64), ("none",))


def hold_out(source: Source, samples: int, seed: int) -> Tensor:
    """Return random rows with equal numbers per class; some classes have one more if needed.

    Inputs that occur more than once in the data stay private: a client might have a copy. Raise
    ConfigError if there are too few samples.
    """
    rng = stream(seed, "public")
    _, groups, times = np.unique(source.row_digests, return_inverse=True, return_counts=True)
    once = torch.from_numpy(times[groups] == 1).nonzero().flatten()
    shuffled = once[torch.randperm(len(once), generator=rng)]
    classes = source.y.unique()
    classes = classes[torch.randperm(len(classes), generator=rng)]
    each, more = divmod(samples, max(1, len(classes)))
    by_class = [shuffled[source.y[shuffled] == label] for label in classes.tolist()]
    if not by_class or any(len(rows) < each + (k < more) for k, rows in enumerate(by_class)):
        limit = min(map(len, by_class), default=0) * len(by_class)
        raise ConfigError(
            f"public.samples = {samples}: {source.name} has {len(source)} samples, of which "
            f"{limit} can be held out with equal numbers per class; lower public.samples"
        )
    rows = torch.cat([rows[: each + (k < more)] for k, rows in enumerate(by_class)])
    return rows[torch.randperm(len(rows), generator=rng)]


def check_classes(public: Source, names: Sequence[str]) -> None:
    """Raise ConfigError if the classes differ from those of the private data."""
    if public.class_names != tuple(names):
        raise ConfigError(
            f"public.name: the method reads labels, but the classes of {public.name} "
            f"({_some(public.class_names)}) are not those of the data ({_some(names)}); use data "
            f"with these classes, or public.name = '{HELD_OUT}'"
        )


def check_inputs(public: PublicData, source: Source) -> None:
    """Raise ConfigError if networks for the private inputs cannot take the public ones.

    If the private data are on other machines, their dtype is unknown, and possibly their shape.
    """
    other_shape = source.shape not in ((), tuple(public.x.shape[1:]))
    other_type = len(source) > 0 and source.x.dtype != public.x.dtype
    if other_shape or other_type:
        raise ConfigError(
            f"public.name = '{public.name}': its inputs are {_kind(public.x)}, those of the data "
            f"{_kind(source.x)}; choose public data of the same shape and type (images in a "
            "folder are scaled to data.image_size)"
        )


def check_disjoint(public: PublicData, sources: Sequence[Source], partition: Partition) -> None:
    """Raise ConfigError if public samples are also private: test samples would be trained on."""
    private = [source.row_digests for source in sources]
    if len(sources) == 1:
        private = [private[0][partition.order.numpy()]]
    both = int(np.isin(row_digests(public.x), np.concatenate(private)).sum())
    if both:
        raise ConfigError(
            f"public.name = '{public.name}': {both} of its {len(public)} samples are private "
            "samples of clients as well; remove them from one of the two, or choose other public "
            "data"
        )


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
