"""Data files that are damaged: a DataError that names the file, never a sample less."""

import gzip
import io
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from fedgh.data import sources
from fedgh.data.sources import SOURCES, Source, Where
from fedgh.errors import DataError
from tests.fuzz.budget import fuzz
from tests.fuzz.payloads import tampered
from tests.fuzz.refusal import Refused, attempt

T = TypeVar("T")
pillow = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def read(load: Callable[[], T], file: Path) -> T | None:
    """What is in a file, or None after a refusal in one line that names it."""
    found = attempt(DataError, load)
    if isinstance(found, Refused):
        assert str(file) in found.why
        assert "\n" not in found.why
        return None
    return found


# CIFAR, three images to a file instead of ten thousand.

IMAGES = 3


def cifar(label_bytes: int) -> bytes:
    rows = np.random.default_rng(0).integers(0, 10, (IMAGES, label_bytes + 3072), np.uint8)
    return rows.tobytes()


@st.composite
def cifar_files(draw: DrawFn) -> tuple[int, bytes]:
    """One or two bytes of label, and a file that is longer, shorter or different."""
    label_bytes = draw(st.sampled_from([1, 2]))
    whole = bytearray(cifar(label_bytes))
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.integers(0, IMAGES - 1)) * (label_bytes + 3072)
        whole[row + label_bytes - 1] = draw(st.integers(0, 255))
    length = draw(st.integers(0, len(whole)) | st.just(len(whole)))
    content = bytes(whole[:length]) + draw(st.binary(max_size=3))
    return label_bytes, draw(tampered(content)) if draw(st.integers(0, 4)) == 0 else content


@fuzz(0.03, file=cifar_files())
def test_cifar_files(place: Path, file: tuple[int, bytes]) -> None:
    label_bytes, content = file
    path = place / "batch.bin"
    path.write_bytes(content)
    width = label_bytes + 3072

    def load() -> Source:
        x, y = sources._cifar([path], [IMAGES], label_bytes, classes=10)
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
def test_the_class_names_of_cifar100(
    place: Path, monkeypatch: pytest.MonkeyPatch, names: bytes
) -> None:
    monkeypatch.setattr(sources, "locate", lambda *_: place)
    some = (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2))
    monkeypatch.setattr(sources, "_cifar", lambda *_, **__: some)
    path = place / "fine_label_names.txt"
    path.write_bytes(names)
    found = read(lambda: SOURCES["cifar100"](Where()), path)
    assert found is None or found.num_classes == 100


# Fashion-MNIST

SHAPE = (3, 4)
VALUES = np.arange(12, dtype=np.uint8).reshape(SHAPE)
IDX = bytes([0, 0, 8, 2]) + np.array(SHAPE, ">u4").tobytes() + VALUES.tobytes()


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@fuzz(0.03, content=tampered(zipped(IDX)) | tampered(IDX).map(zipped) | st.binary(max_size=40))
def test_idx_files(place: Path, content: bytes) -> None:
    path = place / "images.gz"
    path.write_bytes(content)
    found = read(lambda: sources._idx(path, SHAPE), path)
    if found is not None:
        raw = gzip.decompress(content)
        assert (raw[:12], len(raw)) == (IDX[:12], len(IDX))
        assert found.tobytes() == raw[12:]


def test_an_idx_file_that_would_fill_the_memory_is_not_unpacked(place: Path) -> None:
    path = place / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(2**20)) * 2_000)  # two gigabytes
    with pytest.raises(DataError, match="bomb"):
        sources._idx(path, SHAPE)


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


def by_hand(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(96)


MEMBERS: SearchStrategy[bytes] = st.one_of(
    st.sampled_from(ARRAYS).map(npy),
    st.sampled_from(ARRAYS).map(npy).flatmap(tampered),
    st.sampled_from(NPY_HEADERS).map(by_hand),
    st.binary(max_size=9),
)


@st.composite
def archives(draw: DrawFn) -> bytes:
    """A .npz file with the right names or others, of arrays or not, damaged or not."""
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


@fuzz(0.05, content=archives() | st.binary(max_size=60))
def test_npz_files(place: Path, content: bytes) -> None:
    path = place / "mine.npz"
    path.write_bytes(content)
    found = read(lambda: SOURCES["npz"](Where(path=path)), path)
    if found is not None:
        assert len(found.x) == len(found.y)
        assert found.x.dtype == torch.uint8 or bool(found.x.isfinite().all())
        assert set(found.y.tolist()) == set(range(found.num_classes))


# A user's images


def picture(kind: str) -> bytes:
    pixels = random.Random(0).randbytes(8 * 8 * 3)
    out = io.BytesIO()
    pillow.frombytes("RGB", (8, 8), pixels).save(out, kind)
    return out.getvalue()


PICTURES = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "gif": "GIF", "tif": "TIFF", "ppm": "PPM"}


@st.composite
def pictures(draw: DrawFn) -> tuple[str, bytes]:
    """The ending of a file, and a picture of that or another kind, perhaps damaged."""
    ending = draw(st.sampled_from(sorted(PICTURES)))
    whole = picture(PICTURES[draw(st.just(ending) | st.sampled_from(sorted(PICTURES)))])
    return ending, draw(st.just(whole) | tampered(whole) | tampered(whole) | st.binary(max_size=30))


@pytest.mark.filterwarnings("ignore::UserWarning")  # what Pillow says of them
@fuzz(0.05, drawn=pictures())
def test_image_folders(place: Path, drawn: tuple[str, bytes]) -> None:
    ending, content = drawn
    root = place / "images" / ending
    (root / "cat").mkdir(parents=True, exist_ok=True)
    path = root / "cat" / f"one.{ending}"
    path.write_bytes(content)
    found = read(lambda: SOURCES["image-folder"](Where(path=root)), path)
    assert found is None or found.x.shape == (1, 3, 32, 32)
