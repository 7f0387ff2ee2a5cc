"""Data files that are damaged or made to do harm: a DataError that names the file.

Never a sample less, never much time or memory.
"""

import gzip
import io
import math
import os
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from fedgh.data import sources
from fedgh.data.arrays import read_npy, read_npz
from fedgh.data.images import IMAGE_ENDINGS, MAX_PIXELS, read_image
from fedgh.data.sources import SOURCES, DataLocation, Source
from fedgh.errors import DataError
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import tampered
from tests.fuzz.refusal import Refused, attempt
from tests.support import hostile
from tests.support.hostile import Entry, by_hand, cheap, npy_header, stored, zeros, zip_of

T = TypeVar("T")
pillow = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def read(load: Callable[[], T], file: Path) -> T | None:
    """Return the content of a file, or None after one line of error that names the file."""
    with cheap():
        found = attempt(DataError, load)
    if isinstance(found, Refused):
        assert str(file) in found.why
        assert "\n" not in found.why
        return None
    return found


# CIFAR, with three images per file instead of ten thousand.

IMAGES = 3


def cifar(label_bytes: int) -> bytes:
    rows = np.random.default_rng(0).integers(0, 10, (IMAGES, label_bytes + 3072), np.uint8)
    return rows.tobytes()


@st.composite
def cifar_files(draw: DrawFn) -> tuple[int, bytes]:
    """Draw the number of label bytes, and a file that is longer, shorter or different."""
    label_bytes = draw(st.sampled_from([1, 2]))
    whole = bytearray(cifar(label_bytes))
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.integers(0, IMAGES - 1)) * (label_bytes + 3072)
        whole[row + label_bytes - 1] = draw(st.integers(0, 255))
    length = draw(st.integers(0, len(whole)) | st.just(len(whole)))
    content = bytes(whole[:length]) + draw(st.binary(max_size=3))
    return label_bytes, draw(tampered(content)) if draw(st.integers(0, 4)) == 0 else content


@fuzz(0.03, file=cifar_files())
def test_a_cifar_file_is_read_or_refused(folder: Path, file: tuple[int, bytes]) -> None:
    label_bytes, content = file
    path = folder / "batch.bin"
    path.write_bytes(content)
    width = label_bytes + 3072

    def load() -> Source:
        x, y = sources.read_cifar([path], [IMAGES], label_bytes, classes=10)
        return Source("cifar", x, y, tuple("0123456789"))

    found = read(load, path)
    labels = list(content[label_bytes - 1 :: width])
    if len(content) != IMAGES * width or max(labels) >= 10:
        assert found is None
    else:
        assert found is not None
        assert found.y.tolist() == labels
        pixels = [content[k * width + label_bytes : (k + 1) * width] for k in range(IMAGES)]
        assert [bytes(image.flatten().tolist()) for image in found.x] == pixels


@fuzz(0.01, names=st.binary(max_size=40) | tampered("\n".join(map(str, range(100))).encode()))
def test_class_names_of_cifar100_are_read_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, names: bytes
) -> None:
    monkeypatch.setattr(sources, "locate", lambda *_: folder)
    some = (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2))
    monkeypatch.setattr(sources, "read_cifar", lambda *_, **__: some)
    path = folder / "fine_label_names.txt"
    path.write_bytes(names)
    found = read(lambda: SOURCES["cifar100"](DataLocation()), path)
    assert found is None or found.num_classes == 100


# Fashion-MNIST

SHAPE = (3, 4)
VALUES = np.arange(12, dtype=np.uint8).reshape(SHAPE)
IDX = bytes([0, 0, 8, 2]) + np.array(SHAPE, ">u4").tobytes() + VALUES.tobytes()


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


BOMB = zipped(bytes(2**20))


@st.composite
def false_idx_files(draw: DrawFn) -> bytes:
    """Draw an idx file with a false header or more bytes than it should have."""
    shape = draw(st.lists(st.integers(0, 2**32 - 1), max_size=4))
    head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    return zipped(draw(st.sampled_from([head, IDX]))) + draw(st.integers(1, 9)) * BOMB


@fuzz(
    0.03,
    content=st.one_of(
        tampered(zipped(IDX)),
        tampered(IDX).map(zipped),
        false_idx_files(),
        st.binary(max_size=40),
    ),
)
def test_an_idx_file_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "images.gz"
    path.write_bytes(content)
    found = read(lambda: sources.read_idx(path, SHAPE), path)
    if found is not None:
        raw = gzip.decompress(content)
        assert (raw[:12], len(raw)) == (IDX[:12], len(IDX))
        assert found.tobytes() == raw[12:]


def test_an_idx_file_that_unpacks_to_gigabytes_is_refused(folder: Path) -> None:
    path = folder / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(2**20)) * 2_000)  # two gigabytes
    with pytest.raises(DataError, match="bomb"):
        sources.read_idx(path, SHAPE)


# A user's arrays

ARRAYS: list[NDArray[Any]] = [
    np.zeros((4, 3)),
    np.zeros((4, 3), ">f4"),
    np.zeros((4, 3), np.longdouble),
    np.zeros((4, 3), np.float16),
    np.zeros((4, 3), np.complex64),
    np.full((4, 3), 1e300),
    np.full((4, 3), 2**64 - 1, np.uint64),
    np.zeros((4, 2, 2, 3), np.uint8),
    np.zeros((4, 0), np.float32),
    np.zeros((0, 3)),
    np.zeros(()),
    np.array([b"a", b"b"]),
    np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
    np.array(["2020-01-01"], "M8[D]"),
    np.arange(4),
    np.arange(4).astype(">i2"),
    np.arange(4, dtype=np.uint64) + 2**63,
    np.array(["a", "b", "\ud800", "\0"]),
    np.array([True, False, True, True]),
    np.array([{}, [], None, 1], object),
]
NPY_HEADERS = [
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (4, 3), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-4, 3), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 3), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,), }",
    b"{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    b"{'descr': [('a', '<f8')] * 9, 'fortran_order': False, 'shape': (4,), }",
    b"{'descr': '<f8', 'fortran_order': 3, 'shape': 4, }",
    b"__import__('os').getcwd()",
    b"(" * 3_000,
    b"\xff\xfe",
]


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


MEMBERS: SearchStrategy[bytes] = st.one_of(
    st.sampled_from(ARRAYS).map(npy),
    st.sampled_from(ARRAYS).map(npy).flatmap(tampered),
    st.sampled_from(NPY_HEADERS).map(lambda words: by_hand(words) + bytes(96)),
    st.binary(max_size=9),
)

SIZES = st.integers(-2, 9) | st.sampled_from([2**20, 2**31, 2**40, 2**62, 2**63, 10**30])
DTYPES = ["|u1", "|b1", "<i8", "<f4", ">f8", "<f16", "<c8", "<U0", "<U7", "|S0", "|V0", "|O", "<M8"]


@st.composite
def claims(draw: DrawFn) -> bytes:
    """Draw the header of an array, which may claim any size."""
    shape = tuple(draw(st.lists(SIZES, max_size=5)))
    return npy_header(draw(st.sampled_from(DTYPES)), shape)


ANY_NPY = MEMBERS | st.builds(bytes.__add__, claims(), st.binary(max_size=72))


@st.composite
def entries(draw: DrawFn, name: bytes) -> Entry:
    """Draw an entry of an archive: an array or much data, perhaps with a false size."""
    entry = stored(name, draw(ANY_NPY))
    if draw(st.integers(0, 3)) == 0:
        entry = zeros(name, draw(claims()), mebibytes=draw(st.integers(1, 20)))
    match draw(st.sampled_from(["true"] * 4 + ["size", "size", "method", "flags", "crc", "name"])):
        case "size":
            return replace(entry, size=draw(st.integers(0, 2**34) | st.integers(0, 2**64 - 1)))
        case "method":
            return replace(entry, method=draw(st.integers(0, 99)))
        case "flags":
            return replace(entry, flags=draw(st.integers(0, 2**16 - 1)))
        case "crc":
            return replace(entry, crc=draw(st.integers(0, 2**32 - 1)))
        case "name":
            return replace(entry, name=draw(st.binary(max_size=9)))
    return entry


@st.composite
def bombs(draw: DrawFn) -> bytes:
    """Draw an archive of such entries, perhaps with repeated names."""
    listed = [draw(entries(b"x.npy")), draw(entries(b"y.npy"))]
    if draw(st.integers(0, 3)) == 0:
        listed.append(draw(entries(draw(st.sampled_from([b"x.npy", b"z.npy", b"z/", b"x"])))))
    return zip_of(*listed)


@st.composite
def archives(draw: DrawFn) -> bytes:
    """Draw a .npz file: with right or wrong names, with or without arrays, perhaps damaged."""
    out = io.BytesIO()
    how = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    members = {
        draw(st.sampled_from(["x.npy"] * 4 + ["x", "../x.npy"])): draw(MEMBERS),
        draw(st.sampled_from(["y.npy"] * 4 + ["y", "Y.npy"])): draw(MEMBERS),
    }
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    content = out.getvalue()
    return draw(tampered(content)) if draw(st.booleans()) else content


@fuzz(0.02, content=ANY_NPY)
def test_an_npy_file_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "mine.npy"
    path.write_bytes(content)
    found = read(lambda: read_npy(path), path)
    if found is not None:
        assert content.endswith(found.tobytes("A"))
        assert math.prod(found.shape) == found.size


@fuzz(0.02, content=bombs())
def test_arrays_of_an_archive_are_read_exactly_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "bomb.npz"
    path.write_bytes(content)
    found = read(lambda: read_npz(path, "x"), path)
    if found is not None:
        with zipfile.ZipFile(path) as archive:
            assert archive.read("x.npy").endswith(found[0].tobytes("A"))


@fuzz(0.05, content=archives() | bombs() | st.binary(max_size=60))
def test_an_npz_file_is_read_or_refused(folder: Path, content: bytes) -> None:
    path = folder / "mine.npz"
    path.write_bytes(content)
    found = read(lambda: SOURCES["npz"](DataLocation(path=path)), path)
    if found is not None:
        assert len(found.x) == len(found.y)
        assert found.x.dtype == torch.uint8 or bool(found.x.isfinite().all())
        assert set(found.y.tolist()) == set(range(found.num_classes))


# A user's images


def image(kind: str) -> bytes:
    pixels = random.Random(0).randbytes(8 * 8 * 3)
    out = io.BytesIO()
    pillow.frombytes("RGB", (8, 8), pixels).save(out, kind)
    return out.getvalue()


IMAGE_FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "ppm": "PPM",
}


@st.composite
def images(draw: DrawFn) -> tuple[str, bytes]:
    """The ending of a file, and a image of that or another kind, perhaps damaged."""
    ending = draw(st.sampled_from(sorted(IMAGE_FORMATS)))
    whole = image(IMAGE_FORMATS[draw(st.just(ending) | st.sampled_from(sorted(IMAGE_FORMATS)))])
    return ending, draw(st.just(whole) | tampered(whole) | tampered(whole) | st.binary(max_size=30))


@fuzz(0.05, drawn=images())
def test_an_image_folder_is_read_or_refused(folder: Path, drawn: tuple[str, bytes]) -> None:
    ending, content = drawn
    root = folder / "images" / ending
    (root / "cat").mkdir(parents=True, exist_ok=True)
    path = root / "cat" / f"one.{ending}"
    path.write_bytes(content)
    found = read(lambda: SOURCES["image-folder"](DataLocation(path=root)), path)
    assert found is None or found.x.shape == (1, 3, 32, 32)


@st.composite
def images_with_false_sizes(draw: DrawFn) -> tuple[int, int, bytes]:
    """A width, a height, and the image that claims them."""
    side = st.integers(1, 40) | st.integers(2**10, 2**15) | st.integers(1, 2**31 - 1)
    width, height = draw(side), draw(side)
    match draw(st.sampled_from(["png", "bmp", "ppm", "runs", "text", "gif"])):
        case "png":
            return width, height, hostile.png(width, height, draw(st.binary(max_size=40)))
        case "bmp":
            raw = bytearray(hostile.bmp_in_runs(width, height, draw(st.binary(max_size=40))))
            raw[30] = 0  # no runs
            return width, height, bytes(raw)
        case "runs":
            runs = draw(st.lists(st.sampled_from([b"\1\1", b"\0\0", b"\0\2\xff\xff"])))
            return width, height, hostile.bmp_in_runs(width, height, b"".join(runs))
        case "text":
            return width, height, b"P3 %d %d 255 " % (width, height) + 999 * b"#\n"
        case "gif":
            width, height = width % 2**16, height % 2**16
            frame = struct.pack("<HHHHB", 0, 0, width, height, 0)
            screen = struct.pack("<HHBBB", 1, 1, 0, 0, 0)
            return width, height, b"GIF89a" + screen + b"," + frame + b"\x08\x01\0\0;"
    return width, height, b"P6 %d %d 255 " % (width, height) + draw(st.binary(max_size=99))


@fuzz(0.02, drawn=images_with_false_sizes())
def test_an_image_with_a_false_size_is_refused_without_much_memory(
    folder: Path, drawn: tuple[int, int, bytes]
) -> None:
    width, height, content = drawn
    path = folder / "large.png"
    path.write_bytes(content)
    found = read(lambda: read_image(path, (3, 8, 8)), path)
    assert found is None or width * height <= MAX_PIXELS


# Paths that are not regular files

READERS: dict[str, Callable[[Path], object]] = {
    ".npy": read_npy,
    ".npz": lambda path: SOURCES["npz"](DataLocation(path=path)),
    ".gz": lambda path: sources.read_idx(path, SHAPE),
    ".bin": lambda path: sources.read_cifar([path], [IMAGES], 1, classes=10),
    **dict.fromkeys(sorted(IMAGE_ENDINGS), lambda path: read_image(path, (3, 8, 8))),
}
TARGETS = ["pipe", "/dev/zero", "/dev/full", "/dev/tty", "/proc/self/mem", ".", "nothing", "loop"]


@contextmanager
def special_file(folder: Path, name: str, target: str) -> Iterator[Path]:
    """Create a pipe, or a link to a path that is not a file with data."""
    path = folder / name
    try:
        if target == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(path if target == "loop" else target)
        yield path
    finally:
        path.unlink()


@fuzz(
    0.01,
    stem=st.text("abc", min_size=1, max_size=9),
    ending=st.sampled_from(sorted(READERS)),
    target=st.sampled_from(TARGETS),
)
def test_a_special_file_is_refused(folder: Path, stem: str, ending: str, target: str) -> None:
    with special_file(folder, f"special {stem}{ending}", target) as path:
        assert read(lambda: READERS[ending](path), path) is None
