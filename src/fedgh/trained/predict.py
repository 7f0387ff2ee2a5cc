"""Predict the classes of files with a client's model: images, folders of images, arrays.

Files are untrusted: nothing is unpickled, and a file that cannot be read is named in the error.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.data.arrays import read_npy, read_npz
from fedgh.data.images import images_in, read_image
from fedgh.data.sources import channels_first
from fedgh.errors import DataError
from fedgh.formats import few
from fedgh.tables import Column, Sheet
from fedgh.trained.clients import Inputs, TrainedClient

Origin = tuple[str, int | None]
"""The file of an input, and its row if the file is an array."""

MAX_ROWS = 2**20
"""Rows of an array: each takes some hundred bytes in the table of predictions."""


def predict(trained: TrainedClient, paths: Iterable[Path]) -> Sheet:
    """Return a table with the two most probable classes of each input.

    Raise DataError for a file that cannot be read.
    """
    read = [_read(file, trained.inputs) for file in _files(paths)]
    origins = [origin for rows, _ in read for origin in rows]
    shares, labels = trained.probabilities(torch.cat([x for _, x in read])).sort(1, descending=True)
    rows = [
        [*origin, *_guess(trained, share, label, 0), *_guess(trained, share, label, 1)]
        for origin, share, label in zip(origins, shares.tolist(), labels.tolist(), strict=True)
    ]
    title = f"client {trained.number}, {trained.network}"
    note = f"The client was trained on samples of {few(trained.classes)}."
    return Sheet("predictions", title, COLUMNS, rows, note)


COLUMNS = (
    Column("file"),
    Column("row", digits=0),
    Column("class"),
    Column("probability", digits=3),
    Column("second"),
    Column("its probability", digits=3),
)


def _guess(
    trained: TrainedClient, shares: list[float], labels: list[int], rank: int
) -> tuple[str | None, float | None]:
    """Return the class of a rank and its probability; None if there are fewer classes."""
    if rank >= len(labels):
        return None, None
    return trained.class_names[labels[rank]], shares[rank]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield these files, and the images in these folders."""
    for path in paths:
        if not path.exists():
            raise DataError(f"{path} does not exist")
        if not path.is_dir():
            yield path
            continue
        images = images_in(path)
        if not images:
            raise DataError(f"{path} has no images")
        yield from images


def _read(file: Path, inputs: Inputs) -> tuple[list[Origin], Tensor]:
    """Return the inputs in a file, and the origin of each."""
    if file.suffix.lower() in (".npy", ".npz"):
        rows = read_rows(file)
        try:
            x = inputs.check(channels_first(rows))
        except DataError as error:
            raise DataError(f"{file}: {error}") from None
        return [(str(file), row) for row in range(len(x))], x
    if inputs.dtype != torch.uint8 or inputs.shape[0] not in (1, 3):
        raise DataError(f"{file}: the client takes {inputs}, not images; give it a .npy file")
    return [(str(file), None)], read_image(file, inputs.shape)[None]


def read_rows(file: Path) -> NDArray[Any]:
    """Return the array in a .npy file, or `x` in a .npz file. Raise DataError if it is too long."""
    x = read_npz(file, "x")[0] if file.suffix.lower() == ".npz" else read_npy(file)
    if x.ndim and len(x) > MAX_ROWS:
        raise DataError(f"{file} has {len(x):,} rows; give at most {MAX_ROWS:,} at a time")
    return x
