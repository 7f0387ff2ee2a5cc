"""Data files made to fill the memory, to take minutes or never to end are rejected in one line."""

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fedgh.data import arrays, fetch, images, sources
from fedgh.data.arrays import read_npy, read_npz
from fedgh.data.images import read_image
from fedgh.data.sources import SOURCES, DataLocation
from fedgh.errors import ConfigError, DataError, FedghError
from fedgh.models import weights
from fedgh.models.weights import load_weights
from fedgh.trained import predict
from tests.support import hostile
from tests.support.hostile import MIB, Entry, by_hand, cheap, npy_header, stored, zeros, zip_of


def refused(do: Callable[[], object], message: str, kind: type[FedghError] = DataError) -> None:
    """Assert that `do` is rejected quickly, with a message of one line."""
    with cheap(), pytest.raises(kind, match=message) as caught:
        do()
    assert "\n" not in str(caught.value)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


X = stored(b"x.npy", npy(np.zeros((4, 3), np.float32)))
Y = stored(b"y.npy", npy(np.arange(4)))
VAST = npy_header("|u1", (2**59, 2)) + bytes(2**15)
WRONG_SIZE = "does not match its size of .* bytes"


# Special files


def special_files(folder: Path, ending: str) -> list[Path]:
    """Create a pipe, and links to a pipe, a device and a folder."""
    pipe = folder / f"pipe{ending}"
    os.mkfifo(pipe)
    links = []
    for name, target in {"to pipe": pipe, "zero": Path("/dev/zero"), "folder": folder}.items():
        links.append(folder / f"{name}{ending}")
        links[-1].symlink_to(target)
    return [pipe, *links]


def read_names(path: Path) -> object:
    return sources.bytes_of(path, sources.MAX_NAMES)


@pytest.mark.parametrize(
    ("ending", "read"),
    [
        (".npz", lambda path: SOURCES["npz"](DataLocation(path=path))),
        (".npy", read_npy),
        (".png", lambda path: read_image(path, (3, 8, 8))),
        (".gz", lambda path: sources.read_idx(path, (3, 4))),
        (".bin", lambda path: sources.read_cifar([path], [3], 1, classes=10)),
        (".txt", read_names),
    ],
)
def test_only_regular_files_are_read(
    tmp_path: Path, ending: str, read: Callable[[Path], object]
) -> None:
    for path in special_files(tmp_path, ending):
        refused(lambda path=path: read(path), "it is not a regular file")  # type: ignore[misc]


def test_weights_are_read_from_a_regular_file_or_a_link_to_one(tmp_path: Path) -> None:
    for path in special_files(tmp_path, ".safetensors"):
        refused(
            lambda path=path: load_weights(nn.Linear(2, 2), path),  # type: ignore[misc]
            "it is not a regular file; give another file",
            ConfigError,
        )
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "weights")
    (tmp_path / "link").symlink_to(tmp_path / "weights")
    load_weights(nn.Linear(2, 2), tmp_path / "link")


def test_weights_are_bounded_and_their_names_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    save_file({"a\nb\x1b[2J" + 9_999 * "c": torch.zeros(2)}, path)
    refused(lambda: load_weights(nn.Linear(2, 2), path), "does not fit", ConfigError)
    with pytest.raises(ConfigError) as caught:
        load_weights(nn.Linear(2, 2), path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_000
    monkeypatch.setattr(weights, "MAX_WEIGHTS", 100)
    refused(lambda: load_weights(nn.Linear(2, 2), path), "more than 100 bytes", ConfigError)


def test_images_in_a_folder_may_be_links_to_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "photo").write_bytes(hostile.png(8, 8, bytes(72)))
    (tmp_path / "cat" / "a.png").symlink_to(tmp_path / "photo")
    assert len(SOURCES["image-folder"](DataLocation(path=tmp_path))) == 1
    (tmp_path / "cat" / "b.png").symlink_to("/dev/zero")
    refused(
        lambda: SOURCES["image-folder"](DataLocation(path=tmp_path)),
        r"b\.png .* not a regular file",
    )


@pytest.mark.parametrize("name", fetch.OFFICIAL)
def test_a_pipe_with_the_name_of_a_download_is_not_opened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(pooch, "retrieve", no_network)
    monkeypatch.delenv("FEDGH_DATA", raising=False)  # where the data may be
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "nothing")
    official = fetch.OFFICIAL[name]
    item = official.downloads[-1]
    folder = tmp_path if item.unpack else tmp_path / official.folder
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / item.url.rsplit("/", 1)[1])
    refused(lambda: fetch.locate(name, tmp_path), "is not a regular file; remove it")


# Arrays


def at(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


NPZ: dict[str, tuple[Callable[[], bytes], str]] = {
    "bomb": (
        lambda: zip_of(zeros(b"x.npy", npy_header("|u1", (1100, 1, 1024, 1024)), 1100), Y),
        "would take 1,153.*; save it again with np.savez",
    ),
    "numbers that become four times as large": (
        lambda: zip_of(zeros(b"x.npy", npy_header("|b1", (200, MIB)), 200), Y),
        "would take",
    ),
    "labels, which are sorted": (
        lambda: zip_of(X, zeros(b"y.npy", npy_header("|i1", (200 * MIB,)), 200)),
        "would take",
    ),
    "texts of no length": (
        lambda: zip_of(X, stored(b"y.npy", npy_header("<U0", (10**12,)))),
        "would take",
    ),
    "too large a shape": (
        lambda: zip_of(stored(b"x.npy", npy_header("<f8", (10**15, 3)) + bytes(96)), Y),
        WRONG_SIZE,
    ),
    "too small a shape": (
        lambda: zip_of(stored(b"x.npy", npy_header("<f8", (4, 2)) + bytes(96)), Y),
        WRONG_SIZE,
    ),
    "a negative shape": (
        lambda: zip_of(stored(b"x.npy", npy_header("<f8", (-4, -3)) + bytes(96)), Y),
        WRONG_SIZE,
    ),
    "a long header": (
        lambda: zip_of(zeros(b"x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff", 1100), Y),
        "array header",
    ),
    "a deep header": (
        lambda: zip_of(stored(b"x.npy", by_hand(9_000 * b"-" + b"1")), Y),
        "file: .*;",
    ),
    "another version": (lambda: zip_of(stored(b"x.npy", b"\x93NUMPY\x07\x00"), Y), "version"),
    "objects": (
        lambda: zip_of(X, stored(b"y.npy", npy_header("|O", (4,)) + bytes(32))),
        "Object arrays",
    ),
    "structures": (
        lambda: zip_of(X, stored(b"y.npy", npy(np.zeros(4, [("a", "i4"), ("b", "i4")])))),
        "structured",
    ),
    "encrypted": (lambda: zip_of(replace(X, flags=1), Y), "it is encrypted; save it again"),
    "twice": (lambda: zip_of(X, Y, X), "it has two entries of one name; save it again"),
    "a folder": (
        lambda: zip_of(X, Y, stored(b"more/", b"")),
        "there is a folder in it; save it again",
    ),
    "a size of zip64": (lambda: zip_of(Entry(b"x.npy", VAST, 2**60, method=0), Y), WRONG_SIZE),
    "a fitting size of zip64": (
        lambda: zip_of(Entry(b"x.npy", VAST, 2**60 + len(VAST) - 2**15, method=0), Y),
        "would take",
    ),
    "less than it message": (
        lambda: zip_of(replace(X, size=2 * X.size), Y),
        WRONG_SIZE,
    ),
    "no x": (lambda: zip_of(Y), r"must contain x and y; it has y\.npy; save it again"),
}


@pytest.mark.parametrize("name", NPZ)
def test_a_hostile_npz_file_is_rejected_cheaply(name: str, tmp_path: Path) -> None:
    make, message = NPZ[name]
    path = at(tmp_path / "mine.npz", make())
    refused(
        lambda: SOURCES["npz"](DataLocation(path=path)), rf"mine\.npz is not a readable.*{message}"
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_only_compression_methods_of_numpy_are_accepted(method: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", npy_header("|u1", (64, 1, 1024, 1024)) + bytes(64 * MIB))
        archive.writestr("y.npy", npy(np.zeros(64, int)))
    refused(lambda: SOURCES["npz"](DataLocation(path=path)), "in a way that numpy does not use")


def test_entries_that_are_not_requested_are_not_unpacked(tmp_path: Path) -> None:
    bomb = zeros(b"z.npy", npy_header("|u1", (1100 * MIB,)), 1100)
    path = at(tmp_path / "mine.npz", zip_of(X, Y, bomb))
    with cheap():
        assert len(SOURCES["npz"](DataLocation(path=path))) == 4
    path = at(tmp_path / "mine.npz", zip_of(X, replace(bomb, name=b"y.npy")))
    with cheap():
        assert len(read_npz(path, "x")[0]) == 4


def test_the_largest_arrays_of_a_small_file_are_cheap(tmp_path: Path) -> None:
    mebibytes = 50
    x = zeros(b"x.npy", npy_header("|b1", (mebibytes * 1024, 32, 8, 4)), mebibytes)
    y = stored(b"y.npy", npy(np.zeros(mebibytes * 1024, np.int8)))
    path = at(tmp_path / "mine.npz", zip_of(x, y))
    with cheap():
        assert len(SOURCES["npz"](DataLocation(path=path))) == mebibytes * 1024


def test_large_data_are_read_if_their_file_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MAX_UNPACKED", 1000)
    path = tmp_path / "mine.npz"
    many = np.zeros((5_000, 2, 2), np.int8)
    np.savez_compressed(path, x=many, y=np.zeros(5_000, np.int8))
    refused(
        lambda: SOURCES["npz"](DataLocation(path=path)), "only from a file that is not compressed"
    )
    np.savez(path, x=many, y=np.zeros(5_000, np.int8))
    assert len(SOURCES["npz"](DataLocation(path=path))) == 5_000
    np.savez_compressed(path, x=np.random.default_rng(0).random((500, 2)), y=np.zeros(500, int))
    assert len(SOURCES["npz"](DataLocation(path=path))) == 500


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy_header("<f8", (10**15, 3)) + bytes(96), WRONG_SIZE),
        (npy_header("<f4", (2**36,)), WRONG_SIZE),
        (npy_header("<f8", (-1,)) + bytes(96), WRONG_SIZE),
        (npy_header("|O", (4,)) + bytes(32), "Object arrays"),
        (npy_header("<f8", (4, 3)) + bytes(97), WRONG_SIZE),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(MIB), "array header"),
    ],
)
def test_a_hostile_npy_file_is_rejected_cheaply(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = at(tmp_path / "mine.npy", content)
    refused(lambda: read_npy(path), rf"mine\.npy is not a readable .*{message}.*; save it again")


def test_too_many_rows_for_one_prediction_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "MAX_ROWS", 3)
    np.save(tmp_path / "mine.npy", np.zeros((4, 2)))
    refused(
        lambda: predict.read_rows(tmp_path / "mine.npy"), "has 4 rows; give at most 3 at a time"
    )
    np.save(tmp_path / "mine.npy", np.zeros((3, 2)))
    assert len(predict.read_rows(tmp_path / "mine.npy")) == 3


# Images


def progressive(side: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side)).save(out, "JPEG", progressive=True)
    return out.getvalue()


def webp(side: int) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side)).save(out, "WEBP", lossless=True, method=0)
    return out.getvalue()


def saved(kind: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, kind)
    return out.getvalue()


IMAGES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a few too many pixels": (lambda: hostile.png(8193, 8192), "8,193 x 8,192 pixels, more than"),
    "so many that Pillow warns": (lambda: hostile.png(10_000, 10_000), "10,000 x 10,000 pixels"),
    "so many that Pillow refuses": (lambda: hostile.png(10**6, 10**6), "1000000000000 pixels"),
    "a bomb": (lambda: hostile.png(13_000, 13_000, bytes(13_001 * 13_000)), "13,000 x 13,000"),
    "webp": (lambda: webp(6_000), "6,000 x 6,000 pixels, more than 33,554,432"),
    "runs that end lines": (
        lambda: hostile.bmp_in_runs(2**25, 2, 2 * b"\x01\x01\x00\x00"),
        "BMP as text, in runs",
    ),
    "runs that skip lines": (
        lambda: hostile.bmp_in_runs(2**25, 2, b"\x00\x02\xff\xff"),
        "BMP as text, in runs",
    ),
    "comments": (lambda: b"P3\n99 99 255\n" + 10**6 * b"#\n", "PPM as text"),
    "unusual levels": (lambda: b"P5\n2000 2000 100\n" + bytes(4 * 10**6), "unusual levels"),
    "scans": (lambda: hostile.jpeg_of_scans(progressive(8_000), 10_000), "too many scans"),
    "arithmetic": (
        lambda: progressive(16).replace(b"\xff\xc2", b"\xff\xca", 1),
        "arithmetic coding",
    ),
    "a tile": (lambda: hostile.tiled_tiff(32_768, 49_152), "made of tiles"),
    "a tile that Pillow does not see": (lambda: hostile.tiled_tiff(64, 64, kind=17), "tiles"),
    "another format": (lambda: saved("PCX"), "it is none of PNG, JPEG, "),
    "a program in PostScript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", "it is none of"),
    "nothing": (lambda: b"", "it is none of"),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.filterwarnings("error")
def test_a_hostile_image_is_rejected_cheaply(name: str, tmp_path: Path) -> None:
    make, message = IMAGES[name]
    path = at(tmp_path / "one.png", make())
    refused(
        lambda: read_image(path, (3, 8, 8)),
        rf"one\.png is not a readable image: .*{message}.*; replace it by a PNG",
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF"])
def test_usual_images_are_read_with_any_file_ending(kind: str, tmp_path: Path) -> None:
    path = at(tmp_path / "one.png", saved(kind))
    assert read_image(path, (3, 8, 8)).shape == (3, 8, 8)


def test_usual_numbers_of_scans_are_accepted_and_bytes_after_the_image_ignored(
    tmp_path: Path,
) -> None:
    whole = progressive(64)
    path = at(tmp_path / "one.jpg", whole + 10_000 * b"\xff\xda")  # like a video after a photo
    assert read_image(path, (1, 8, 8)).shape == (1, 8, 8)
    kinds = images.jpeg_markers(hostile.jpeg_of_scans(whole, 7) + whole)
    assert kinds.count(0xDA) == whole.count(b"\xff\xda") + 7


def test_tags_are_found_in_both_byte_orders_and_in_bigtiff() -> None:
    for order in "<>":
        mark = b"II" if order == "<" else b"MM"
        old = mark + struct.pack(f"{order}HIHH10xH10x", 42, 8, 2, 322, 256)
        assert images.tiff_tags(old) == {322, 256}
        big = mark + struct.pack(f"{order}HHHQQH18x", 43, 8, 0, 16, 1, 322)
        assert images.tiff_tags(big) == {322}
        lying = mark + struct.pack(f"{order}HHHQQH18x", 43, 8, 0, 16, 2**60, 322)
        assert images.tiff_tags(lying) == {322}


def test_the_largest_image_is_cheap(tmp_path: Path) -> None:
    path = at(tmp_path / "one.png", hostile.png(8192, 8192, bytes(8193 * 8192)))
    with cheap():
        assert read_image(path, (3, 32, 32)).shape == (3, 32, 32)


def test_the_first_of_several_frames_is_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (8, 8), shade) for shade in (200, 0, 100)]
    for ending in ("gif", "png", "tif"):
        path = tmp_path / f"one.{ending}"
        frames[0].save(path, save_all=True, append_images=frames[1:])
        assert read_image(path, (1, 8, 8)).unique().tolist() == [200]


# Official files


def test_official_files_larger_than_expected_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**36)  # a sparse file
    refused(lambda: sources.read_cifar([path], [3], 1, classes=10), "more than 9,219 bytes")
    refused(lambda: sources.read_idx(path, (3, 4)), "more than 65,560 bytes")
    refused(lambda: read_names(path), "more than 65,536 bytes.*download it again")


def test_a_long_list_of_class_names_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "locate", lambda *_: tmp_path)
    some = (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2))
    monkeypatch.setattr(sources, "read_cifar", lambda *_, **__: some)
    with (tmp_path / "fine_label_names.txt").open("wb") as file:
        file.truncate(2**36)
    refused(lambda: SOURCES["cifar100"](DataLocation()), "fine_label_names.txt cannot be read")


def test_an_idx_file_is_unpacked_only_to_its_expected_size(tmp_path: Path) -> None:
    path = at(tmp_path / "bomb.gz", 60 * gzip.compress(bytes(MIB)))
    refused(lambda: sources.read_idx(path, (3, 4)), "is not an idx file")
