"""Convert a user's data to a `Source`: arrays, data sets of other libraries, files.

Labels may be numbers or strings. Their sorted values are the classes. If names of classes are
given, labels that are numbers are positions in the list of names.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.data.arrays import read_npz
from fedgh.data.images import pixels
from fedgh.data.sources import DataLocation, Source, channels_first, image_folder
from fedgh.defaults import IMAGE_SIZE
from fedgh.errors import DataError

MAX_EXACT = 2**24
"""The largest integer up to which float32 represents every integer exactly."""


class Items(Protocol):
    """A map-style data set, like those of torch: `data[i]` is an input and its label."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Data = Source | tuple[Any, Any] | Items | Path | str
"""A `Source`; inputs and labels (tensors, arrays, lists, columns of a table); a data set of torch
or Hugging Face; a folder with a sub-folder of images for each class; an .npz file with x and y."""


def source_of(
    data: Data, classes: Sequence[str] | None = None, image_size: int = IMAGE_SIZE
) -> Source:
    """Return data as a `Source`. Raise DataError if they cannot be interpreted.

    `classes` are all names that labels may have. Images (of a folder, or Pillow's) are scaled to
    `image_size`.
    """
    if classes is not None:
        classes = [str(name) for name in classes]
        if len(set(classes)) < len(classes):
            raise DataError(f"classes: a name occurs twice in {', '.join(classes[:10])}")
    if isinstance(data, Source):
        source = data
    elif isinstance(data, str | Path):
        path = Path(data)
        if not path.exists():
            raise DataError(
                f"{path} does not exist; give a folder with one sub-folder of images per class, or "
                "an .npz file with x and y"
            )
        if path.suffix == ".npz":
            x, y = read_npz(path, "x", "y")
            source = _source(x, y, classes, image_size)
        else:
            source = image_folder(DataLocation(path=path, image_size=image_size))
    elif isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"data: expected inputs and labels, got {len(data)} values")
        source = _source(data[0], data[1], classes, image_size)
    elif hasattr(data, "iloc"):
        raise DataError("data: give columns of a table: (table[['a', 'b']], table['label'])")
    elif hasattr(data, "column_names") and hasattr(data, "features"):
        source = _from_columns(data, classes, image_size)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        source = _from_items(data, classes, image_size)
    else:
        raise DataError(f"data: a {type(data).__name__} is not supported; give inputs and labels")
    return source if classes is None else with_classes(source, classes)


def all_classes(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the classes of all sources: numbers in numerical, strings in alphabetical order.

    Raise DataError if some sources have numbers and others strings.
    """
    per_source = [source.class_names for source in sources]
    names = {name for own in per_source for name in own}
    numbers = [all(name.removeprefix("-").isdecimal() for name in own) for own in per_source]
    if all(numbers):
        return tuple(sorted(names, key=int))
    if any(numbers):
        raise DataError(
            "some clients have numbers as classes, others words; name all of them: classes=[...]"
        )
    return tuple(sorted(names))


def with_classes(source: Source, classes: Sequence[str]) -> Source:
    """Return the samples with labels that are positions in `classes`.

    Raise DataError for a class that is not in `classes`.
    """
    if source.class_names == tuple(classes):
        return source
    position = {name: index for index, name in enumerate(classes)}
    unexpected = [name for name in source.class_names if name not in position]
    if unexpected:
        raise DataError(
            f"{source.name}: class '{unexpected[0]}' is not one of {', '.join(list(classes)[:10])}"
        )
    positions = torch.tensor([position[name] for name in source.class_names])
    return Source(source.name, source.x, positions[source.y], tuple(classes))


def _source(x: Any, y: Any, classes: Sequence[str] | None, image_size: int) -> Source:
    inputs = inputs_of(x, image_size)
    labels, names = _labels(y, classes)
    return Source("own data", inputs, torch.from_numpy(labels), names)


def inputs_of(x: Any, image_size: int = IMAGE_SIZE) -> Tensor:
    """Return inputs as a tensor: uint8 images [n, c, h, w], or float32 of any shape.

    Raise DataError if they are neither.
    """
    if isinstance(x, Iterable) and not isinstance(x, Tensor) and not hasattr(x, "__array__"):
        x = [_plain(one, image_size) for one in x]
    try:
        array = np.asarray(_plain(x, image_size))
    except ValueError:
        raise DataError("data: inputs have different shapes; give all the same shape") from None
    if array.dtype.kind not in "iufb":
        raise DataError(f"data: inputs should be numbers, got {array.dtype}")
    if array.ndim < 2 or not len(array):
        raise DataError(f"data: inputs should be [samples, ...], got {array.shape}")
    if array.dtype.kind in "iu" and array.size and int(abs(array).max()) > MAX_EXACT:
        raise DataError(
            f"data: integers above {MAX_EXACT} lose digits as float32; scale or renumber them"
        )
    if array.dtype == np.uint8 and array.ndim == 3:
        raise DataError(
            f"data: bytes of shape {array.shape} are ambiguous; for images add a dimension for the "
            "channels, x[:, None], otherwise convert them to floats"
        )
    array = channels_first(array)
    images = array.dtype == np.uint8 and array.ndim == 4
    with np.errstate(over="ignore"):  # values that overflow are reported as not finite later
        return torch.from_numpy(np.ascontiguousarray(array, np.uint8 if images else np.float32))


def _plain(one: Any, image_size: int) -> Any:
    """Return an image or a tensor as an array, and any other object unchanged."""
    if isinstance(one, Tensor):
        one = one.detach().cpu()
        return (one.float() if one.is_floating_point() else one).numpy()
    if hasattr(one, "convert") and hasattr(one, "resize"):
        return pixels(one, (3, image_size, image_size))
    return one


def _labels(y: Any, classes: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels as positions, and the names of the positions."""
    values = np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    if values.dtype.kind == "O":
        if any(value is None or value != value for value in values.flat):
            raise DataError("data: some labels are missing; remove these samples")
        values = values.astype(str)
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        raise DataError(
            f"data: labels should be one integer or string per input, got {values.dtype} "
            f"{values.shape}"
        )
    if classes is not None and values.dtype.kind in "iub":
        return values.astype(np.int64), tuple(classes)
    names, positions = np.unique(values, return_inverse=True)
    return positions.astype(np.int64), tuple(map(str, names))


def _from_items(data: Items, classes: Sequence[str] | None, image_size: int) -> Source:
    """Return all items of a map-style data set, such as torch's, as a source."""
    pairs = [data[index] for index in range(len(data))]
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise DataError("data: every item of a data set should be an input and its label")
    x = [pair[0] for pair in pairs]
    y = [pair[1].item() if isinstance(pair[1], Tensor) else pair[1] for pair in pairs]
    return _source(x, y, _names_of(data) or classes, image_size)


def _names_of(data: Any) -> Sequence[str] | None:
    """Return the class names of a data set, or of the one that it is a subset of; else None."""
    names: Sequence[str] | None = getattr(data, "classes", None)
    return _names_of(data.dataset) if names is None and hasattr(data, "dataset") else names


def _from_columns(data: Any, classes: Sequence[str] | None, image_size: int) -> Source:
    """Return a Hugging Face data set as a source.

    The column of labels has class names or a usual name; the other column is the input.
    """
    features, columns = data.features, list(data.column_names)
    labels = [name for name in columns if hasattr(features[name], "names")] or [
        name for name in columns if name in ("label", "labels", "target", "y")
    ]
    inputs = [name for name in columns if name not in labels]
    images = [name for name in inputs if name in ("image", "img")]
    if len(labels) != 1 or len(images or inputs) != 1:
        raise DataError(
            f"data: cannot tell which of the columns {', '.join(columns)} are input and label; "
            "give both: (data['input'], data['label'])"
        )
    names = getattr(features[labels[0]], "names", None)
    y = list(data[labels[0]])
    return _source(list(data[(images or inputs)[0]]), y, names or classes, image_size)
