"""Whatever people have as data becomes a `Source`: arrays, data sets of other libraries, files.

Labels may be numbers or words. Their sorted values are the classes, unless names are given: then
numbers are places among the names.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.data.sources import Source, Where, channels_first, image_folder, npz
from fedgh.errors import DataError

IMAGE_SIZE = 32
"""The side to which images are scaled that may have any size."""


class Items(Protocol):
    """A map-style data set, as torch's are: `data[i]` is an input and its label."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Data = Source | tuple[Any, Any] | Items | Path | str
"""A `Source`; inputs and labels (tensors, arrays, lists, columns of a table); a data set of torch
or Hugging Face; a folder with a sub-folder of images for each class; an .npz file with x and y."""


def source_of(
    data: Data, classes: Sequence[str] | None = None, image_size: int = IMAGE_SIZE
) -> Source:
    """The same data as a `Source`; DataError says what cannot be understood.

    `classes` are all names that labels may have. Pictures (of a folder, or Pillow's) are scaled
    to `image_size`.
    """
    if isinstance(data, Source):
        source = data
    elif isinstance(data, str | Path):
        path = Path(data)
        source = (npz if path.suffix == ".npz" else image_folder)(
            Where(path=path, image_size=image_size)
        )
    elif isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"data: expected inputs and labels, got {len(data)} things")
        source = _source(data[0], data[1], classes, image_size)
    elif hasattr(data, "iloc"):
        raise DataError("data: of a table give columns: (table[['a', 'b']], table['label'])")
    elif hasattr(data, "column_names") and hasattr(data, "features"):
        source = _from_columns(data, classes, image_size)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        source = _from_items(data, classes, image_size)
    else:
        raise DataError(f"data: a {type(data).__name__} is not understood; give inputs and labels")
    return source if classes is None else with_classes(source, classes)


def all_classes(sources: Iterable[Source]) -> tuple[str, ...]:
    """The classes of all sources together: numbers by their size, words by the alphabet."""
    names = {name for source in sources for name in source.class_names}
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def with_classes(source: Source, classes: Sequence[str]) -> Source:
    """The same samples, with labels that are places among `classes`."""
    if source.class_names == tuple(classes):
        return source
    place = {name: index for index, name in enumerate(classes)}
    strange = [name for name in source.class_names if name not in place]
    if strange:
        raise DataError(
            f"{source.name}: class '{strange[0]}' is not one of {', '.join(list(classes)[:10])}"
        )
    places = torch.tensor([place[name] for name in source.class_names])
    return Source(source.name, source.x, places[source.y], tuple(classes))


def _source(x: Any, y: Any, classes: Sequence[str] | None, image_size: int) -> Source:
    inputs = _inputs(x, image_size)
    if inputs.ndim < 2 or not len(inputs):
        raise DataError(f"data: inputs should be [samples, ...], got {tuple(inputs.shape)}")
    labels, names = _labels(y, classes)
    return Source("own data", inputs, torch.from_numpy(labels), names)


def _inputs(x: Any, image_size: int) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().cpu()
    if isinstance(x, Sequence) and len(x) and isinstance(x[0], Tensor):
        x = [one.detach().cpu().numpy() for one in x]
    elif isinstance(x, Iterable) and not hasattr(x, "__array__"):
        x = [_pixels(one, image_size) for one in x]
    try:
        array = np.asarray(x)
    except ValueError:
        raise DataError("data: inputs have different shapes; bring them to one") from None
    if array.dtype.kind not in "iufb":
        raise DataError(f"data: inputs should be numbers, got {array.dtype}")
    array = channels_first(array)
    return torch.from_numpy(
        np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.float32)
    )


def _pixels(one: Any, image_size: int) -> Any:
    """A picture as an array; whatever is not a picture as it is."""
    if not hasattr(one, "convert"):
        return one
    return np.asarray(one.convert("RGB").resize((image_size, image_size)))


def _labels(y: Any, classes: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels as places, and the names of these."""
    values = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if values.dtype.kind == "O":
        values = values.astype(str)
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        raise DataError(
            f"data: labels should be one whole number or word per input, got {values.dtype} "
            f"{values.shape}"
        )
    if classes is not None and values.dtype.kind in "iu":
        return values.astype(np.int64), tuple(classes)
    names, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), tuple(map(str, names))


def _from_items(data: Items, classes: Sequence[str] | None, image_size: int) -> Source:
    """All items of a map-style data set, such as torch's."""
    pairs = [data[index] for index in range(len(data))]
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise DataError("data: every item of a data set should be an input and its label")
    x = [pair[0] for pair in pairs]
    y = [int(pair[1]) if isinstance(pair[1], Tensor) else pair[1] for pair in pairs]
    return _source(x, y, getattr(data, "classes", None) or classes, image_size)


def _from_columns(data: Any, classes: Sequence[str] | None, image_size: int) -> Source:
    """A Hugging Face data set: the column of labels knows its names, the other one is the input."""
    features, columns = data.features, list(data.column_names)
    labels = [name for name in columns if hasattr(features[name], "names")] or [
        name for name in columns if name in ("label", "labels", "target", "y")
    ]
    inputs = [name for name in columns if name not in labels]
    pictures = [name for name in inputs if name in ("image", "img")]
    if len(labels) != 1 or len(pictures or inputs) != 1:
        raise DataError(
            f"data: which of the columns {', '.join(columns)} is the input, which the label? "
            "Give both: (data['input'], data['label'])"
        )
    names = getattr(features[labels[0]], "names", None)
    y = list(data[labels[0]])
    return _source(list(data[(pictures or inputs)[0]]), y, names or classes, image_size)
