"""Data sets as tensors: inputs, labels, class names.

A source contains all samples of a data set; the partition decides which are for training and which
for testing. Files are untrusted: sizes and labels are checked, nothing is unpickled.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate, pad

from fedgh.data.arrays import read_npz
from fedgh.data.fetch import expanded, locate
from fedgh.data.images import images_in, read_image
from fedgh.defaults import IMAGE_SIZE
from fedgh.errors import ConfigError, DataError
from fedgh.files import read_bytes

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
FASHION_CLASSES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
FETCH_AGAIN = "it is damaged; delete it and download it again"

MAX_NAMES = 2**16
"""Bytes of a file of class names; the official one has about a thousand."""

MAX_OVERHEAD = 2**16
"""Bytes by which gzip may enlarge an official file that cannot be compressed."""


@dataclass(frozen=True)
class Source:
    """A data set: inputs [n, ...] and their classes [n].

    uint8 inputs of shape [n, c, h, w] are images; all others become float32. NumPy arrays are
    converted to tensors. Raise DataError for labels that are not classes and inputs that are not
    finite.
    """

    name: str
    x: Tensor
    y: Tensor
    class_names: tuple[str, ...]
    tests: int = 0  # official test samples: the last of all

    def __post_init__(self) -> None:
        x, y = torch.as_tensor(self.x), torch.as_tensor(self.y)
        x = x if x.dtype == torch.uint8 and x.ndim == 4 else x.float()
        # Images are stored channels-last: networks and augmentation are faster with that layout.
        layout = torch.channels_last if x.ndim == 4 else torch.contiguous_format
        object.__setattr__(self, "x", x.contiguous(memory_format=layout))
        object.__setattr__(self, "y", y.long())
        if len(self.x) != len(self.y):
            raise DataError(f"{self.name}: {len(self.x)} inputs and {len(self.y)} labels")
        if len(self.y) and (self.y.min() < 0 or self.y.max() >= len(self.class_names)):
            raise DataError(
                f"{self.name}: labels from {int(self.y.min())} to {int(self.y.max())}, "
                f"but there are {len(self.class_names)} classes (0 to {len(self.class_names) - 1})"
            )
        if self.x.is_floating_point() and not self.x.isfinite().all():
            raise DataError(f"{self.name}: some inputs are not finite")

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> bytes:
        """A digest of inputs and labels."""
        return digest_of(self.x, self.y)

    @cached_property
    def row_digests(self) -> NDArray[np.uint64]:
        """A short digest of each input; equal inputs have equal digests."""
        return row_digests(self.x)

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def images(self) -> bool:
        """True if the inputs are images, as bytes."""
        return self.x.dtype == torch.uint8 and self.x.ndim == 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])


def digest_of(*tensors: Tensor) -> bytes:
    """Return a digest of shapes and values."""
    out = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        out.update(str(tuple(tensor.shape)).encode())
        out.update(tensor.contiguous().numpy().data)
    return out.digest()


def row_digests(x: Tensor) -> NDArray[np.uint64]:
    """Return a short digest of each row; equal rows have equal digests."""
    rows = x.contiguous().numpy()
    short = (hashlib.blake2b(row.data, digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(short), np.uint64)


@dataclass(frozen=True)
class DataLocation:
    """The folder, file and settings with which a source finds and reads its data."""

    dir: Path | None = None  # the folder of official files
    path: Path | None = None  # the user's own file or folder
    image_size: int = IMAGE_SIZE
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    section: str = "data"  # of the configuration, for error messages


def digits(location: DataLocation) -> Source:  # noqa: ARG001
    """1,797 handwritten digits (Alpaydin and Kaynak 1998), 8x8, enlarged to 32x32. No download."""
    with (resources.files("fedgh.data") / "digits.npz").open("rb") as file:
        archive = np.load(file)
        small, labels = torch.from_numpy(archive["x"]), torch.from_numpy(archive["y"])
    images = small.float().view(-1, 1, 8, 8) * (255 / 16)
    large = interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
    x = large.round().clamp(0, 255).to(torch.uint8)
    return Source("digits", x, labels.long(), tuple("0123456789"))


def cifar10(location: DataLocation) -> Source:
    """CIFAR-10 (Krizhevsky 2009): 60,000 colour images, 10 classes."""
    folder = locate("cifar10", location.dir)
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    x, y = read_cifar([folder / name for name in files], [10_000] * 6, label_bytes=1, classes=10)
    return Source("cifar10", x, y, CIFAR10_CLASSES, tests=10_000)


def cifar100(location: DataLocation) -> Source:
    """CIFAR-100 (Krizhevsky 2009): 60,000 colour images, 100 (fine) classes."""
    folder = locate("cifar100", location.dir)
    files = [folder / "train.bin", folder / "test.bin"]
    x, y = read_cifar(files, [50_000, 10_000], label_bytes=2, classes=100)
    listed = folder / "fine_label_names.txt"
    names = bytes_of(listed, MAX_NAMES).decode("utf-8", errors="replace").split()
    if len(names) != 100:
        raise DataError(f"{listed} has {len(names)} names instead of 100; {FETCH_AGAIN}")
    return Source("cifar100", x, y, tuple(names), tests=10_000)


def fashion_mnist(location: DataLocation) -> Source:
    """Fashion-MNIST (Xiao et al. 2017): 70,000 grey images, 10 classes, padded to 32x32."""
    folder = locate("fashion-mnist", location.dir)
    images, labels = [], []
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images.append(read_idx(folder / f"{part}-images-idx3-ubyte.gz", (count, 28, 28)))
        labels.append(read_idx(folder / f"{part}-labels-idx1-ubyte.gz", (count,), below=10))
    x = pad(torch.from_numpy(np.concatenate(images))[:, None], [2, 2, 2, 2])
    return Source(
        "fashion-mnist", x, torch.from_numpy(np.concatenate(labels)).long(), FASHION_CLASSES
    )


def image_folder(location: DataLocation) -> Source:
    """Your images: one sub-folder per class under `data.path`, scaled to `data.image_size`."""
    expected = "a folder with one sub-folder of images per class"
    root = _own_path(location, "image-folder", expected)
    if not root.is_dir():
        raise DataError(f"{location.section}.path: {root} should be {expected}")
    classes = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    shape = (3, location.image_size, location.image_size)
    images, labels = [], []
    for label, name in enumerate(classes):
        for file in images_in(root / name):
            images.append(read_image(file, shape))
            labels.append(label)
        if label not in labels[-1:]:
            raise DataError(f"{root / name} has no images; fill it or remove it")
    if not images:
        raise DataError(
            f"{root} has no sub-folders with images; put the images of class A into {root}/A/"
        )
    return Source("image-folder", torch.stack(images), torch.tensor(labels), tuple(classes))


def npz(location: DataLocation) -> Source:
    """Your arrays: a .npz file at `data.path` with `x` [n, ...] and `y` [n].

    uint8 images are [n, c, h, w], or [n, h, w, c] with one or three channels; anything else
    becomes float32. Labels may be any integers or strings; sorted, they become classes 0, 1, ...
    """
    path = _own_path(location, "npz", "a .npz file with arrays x and y")
    inputs, labels = read_npz(path, "x", "y")
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise DataError(f"{path}: y must be one integer or string per input, got {labels.dtype}")
    if inputs.dtype.kind not in "iufb" or inputs.ndim < 2:
        raise DataError(f"{path}: x must be numbers [n, ...], got {inputs.dtype} {inputs.shape}")
    images = inputs.dtype == np.uint8 and inputs.ndim == 4
    inputs = channels_first(inputs)
    with np.errstate(over="ignore"):  # values that overflow are reported as not finite
        x = torch.from_numpy(np.ascontiguousarray(inputs, np.uint8 if images else np.float32))
    names, y = np.unique(labels, return_inverse=True)
    try:
        return Source("npz", x, torch.from_numpy(y), tuple(map(str, names)))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def channels_first(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return images [n, h, w, c] with one or three channels as [n, c, h, w], others unchanged."""
    images = inputs.dtype == np.uint8 and inputs.ndim == 4
    if images and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        return inputs.transpose(0, 3, 1, 2)
    return inputs


def own(location: DataLocation) -> Source:
    """Data that are given in Python (`fedgh.Federation`); a configuration file cannot use it."""
    raise ConfigError(
        f"{location.section}.name = 'own': the data were given in Python; run the program that "
        "gave them"
    )


def private(location: DataLocation) -> Source:
    """Data that are only on the clients' machines: the server knows just `data.classes`."""
    if not location.classes:
        raise ConfigError("data.classes: data.name = 'private' needs the names of all classes")
    inputs = torch.empty(0, *location.shape, dtype=torch.uint8)
    return Source("private", inputs, torch.empty(0), location.classes)


SOURCES: dict[str, Callable[[DataLocation], Source]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "image-folder": image_folder,
    "npz": npz,
    "own": own,
    "private": private,
}

SEPARATE = ("private", "own")
"""Names of data sets of which each client has its own part, without a partition."""


def _own_path(location: DataLocation, name: str, expected: str) -> Path:
    if location.path is None:
        raise ConfigError(
            f"{location.section}.path: {location.section}.name = '{name}' needs it: {expected}"
        )
    path = expanded(location.path)
    if not path.exists():
        raise DataError(f"{location.section}.path: {path} does not exist; it should be {expected}")
    return path


def read_cifar(
    paths: list[Path], counts: list[int], label_bytes: int, classes: int
) -> tuple[Tensor, Tensor]:
    """Return images and labels of the official binary files.

    Each image has its label bytes (the last is the fine label), followed by its pixels. Raise
    DataError if a file is damaged.
    """
    images, labels = [], []
    for path, count in zip(paths, counts, strict=True):
        width = label_bytes + 3 * 32 * 32
        raw = np.frombuffer(bytes_of(path, count * width), np.uint8)
        if raw.size != count * width:
            raise DataError(
                f"{path} has {raw.size:,} bytes instead of {count * width:,}: {FETCH_AGAIN}"
            )
        rows = raw.reshape(count, width)
        labels.append(_labels(path, rows[:, label_bytes - 1], classes))
        images.append(rows[:, label_bytes:].reshape(count, 3, 32, 32))
    return (
        torch.from_numpy(np.concatenate(images)),
        torch.from_numpy(np.concatenate(labels)).long(),
    )


def read_idx(path: Path, shape: tuple[int, ...], below: int = 256) -> NDArray[np.uint8]:
    """Return the values of an idx file: zero, zero, type 8, number of dimensions, sizes, values.

    Raise DataError if it is damaged, or has a value that is not below `below`.
    """
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    size = len(header) + int(np.prod(shape))
    packed = bytes_of(path, size + MAX_OVERHEAD)
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            raw = file.read(size + 1)  # one byte more than expected, to detect a longer file
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): {FETCH_AGAIN}") from None
    if not raw.startswith(header) or len(raw) != size:
        raise DataError(f"{path} is not an idx file of {shape} bytes: {FETCH_AGAIN}")
    values = np.frombuffer(raw, np.uint8, offset=len(header))
    return _labels(path, values, below).reshape(shape).copy()


def _labels(path: Path, labels: NDArray[np.uint8], below: int) -> NDArray[np.uint8]:
    """Return the labels. Raise DataError unless all are below `below`."""
    if labels.max() >= below:
        raise DataError(
            f"{path} has a label {labels.max()} outside 0 to {below - 1}: {FETCH_AGAIN}"
        )
    return labels


def bytes_of(path: Path, limit: int) -> bytes:
    """Return the content of an official file. Raise DataError if it cannot be read."""
    try:
        return read_bytes(path, limit, follow=True)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {FETCH_AGAIN}") from None
