import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import torch
from numpy.typing import NDArray

from fedgh.core.batches import to_input
from fedgh.data import fetch, sources
from fedgh.data.sources import SOURCES, DataLocation, Source
from fedgh.errors import ConfigError, DataError


def test_digits_are_enlarged_to_32_by_32() -> None:
    source = SOURCES["digits"](DataLocation())
    assert source.x.shape == (1797, 1, 32, 32)
    assert source.x.dtype == torch.uint8
    assert source.num_classes == 10
    assert source.y.bincount().min() > 170
    assert (int(source.x.min()), int(source.x.max())) == (0, 255)


def test_inputs_are_between_minus_one_and_one() -> None:
    x = to_input(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    torch.testing.assert_close(x, torch.tensor([[[[-1.0, 1.0]]]]))
    table = torch.tensor([[3.0, 7.0]])
    assert to_input(table).equal(table)


@pytest.fixture
def fake_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The official layouts with random content: label bytes, then red, green and blue planes."""
    rng = np.random.default_rng(0)
    ten = tmp_path / "cifar-10-batches-bin"
    hundred = tmp_path / "cifar-100-binary"
    ten.mkdir()
    hundred.mkdir()
    monkeypatch.setenv("FEDGH_DATA", str(tmp_path))
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        rows = rng.integers(0, 256, (10_000, 3073), np.uint8)
        rows[:, 0] %= 10
        rows.tofile(ten / name)
    for name, n in (("train.bin", 50_000), ("test.bin", 10_000)):
        rows = rng.integers(0, 256, (n, 3074), np.uint8)
        rows[:, 0] %= 20
        rows[:, 1] %= 100
        rows.tofile(hundred / name)
    (hundred / "fine_label_names.txt").write_text("\n".join(f"class{i}" for i in range(100)))
    return tmp_path


def test_cifar10_binary_layout(fake_cifar: Path) -> None:
    source = SOURCES["cifar10"](DataLocation())
    assert source.x.shape == (60_000, 3, 32, 32)
    raw = (fake_cifar / "cifar-10-batches-bin" / "test_batch.bin").read_bytes()
    assert source.y[50_007] == raw[7 * 3073]
    assert bytes(source.x[50_007].flatten().tolist()) == raw[7 * 3073 + 1 : 8 * 3073]


def test_cifar100_binary_layout(fake_cifar: Path) -> None:
    source = SOURCES["cifar100"](DataLocation())
    assert source.num_classes == 100
    raw = (fake_cifar / "cifar-100-binary" / "train.bin").read_bytes()
    assert source.y[3] == raw[3 * 3074 + 1]  # the fine label is the second byte
    assert bytes(source.x[3].flatten().tolist()) == raw[3 * 3074 + 2 : 4 * 3074]


def test_an_error_names_a_truncated_cifar_file(fake_cifar: Path) -> None:
    path = fake_cifar / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"data_batch_3\.bin has 30,729,900 bytes"):
        SOURCES["cifar10"](DataLocation())


def test_an_error_names_a_file_with_a_label_out_of_range(fake_cifar: Path) -> None:
    path = fake_cifar / "cifar-10-batches-bin" / "data_batch_3.bin"
    raw = bytearray(path.read_bytes())
    raw[0] = 99
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"data_batch_3\.bin has a label 99 outside 0 to 9"):
        SOURCES["cifar10"](DataLocation())


def test_a_given_folder_takes_precedence_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDGH_DATA", str(tmp_path / "env"))
    assert fetch.data_folders(tmp_path / "given")[:2] == [tmp_path / "given", tmp_path / "env"]
    monkeypatch.delenv("FEDGH_DATA")
    assert len(fetch.data_folders(None)) == 1


def idx(values: NDArray[np.uint8]) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(head + values.tobytes(), compresslevel=1)


@pytest.fixture
def fake_fashion(tmp_path: Path) -> Path:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, n in (("train", 60_000), ("t10k", 10_000)):
        labels = rng.integers(0, 10, n, np.uint8)
        images = np.broadcast_to(labels[:, None, None], (n, 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
    return tmp_path


def test_fashion_mnist_idx_files_are_padded_to_32(fake_fashion: Path) -> None:
    source = SOURCES["fashion-mnist"](DataLocation(dir=fake_fashion))
    assert source.x.shape == (70_000, 1, 32, 32)
    assert source.x[:, 0, 2:30, 2:30].amin((1, 2)).equal(source.y.to(torch.uint8))
    assert source.x[:, :, :2].eq(0).all()


@pytest.mark.parametrize("damage", [b"", b"not gzip", gzip.compress(b"short", mtime=0)])
def test_an_error_names_a_damaged_idx_file(fake_fashion: Path, damage: bytes) -> None:
    (fake_fashion / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(damage)
    with pytest.raises(DataError, match="t10k-labels-idx1"):
        SOURCES["fashion-mnist"](DataLocation(dir=fake_fashion))


@pytest.mark.parametrize("name", fetch.OFFICIAL)
def test_without_network_the_error_tells_which_files_to_put_where(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.delenv("FEDGH_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(pooch, "retrieve", no_network)
    with pytest.raises(DataError) as error:
        SOURCES[name](DataLocation(dir=tmp_path))
    text = str(error.value)
    official = fetch.OFFICIAL[name]
    assert "\n" not in text
    assert str(tmp_path / official.folder) in text
    assert all(file in text for file in official.files)
    assert all(item.url in text for item in official.downloads)
    assert "$FEDGH_DATA" in text


def test_a_download_is_verified_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pooch, served a small archive over loopback."""
    import functools
    import hashlib
    import http.server
    import io
    import tarfile
    import threading

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("small/data.bin")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "small.tar.gz").write_bytes(buffer.getvalue())
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served")
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/small.tar.gz"
    good = hashlib.md5(buffer.getvalue(), usedforsecurity=False).hexdigest()
    try:
        for md5, fine in (("0" * 32, False), (good, True)):
            small = fetch.Official("small", ("data.bin",), (fetch.Download(url, md5, True),))
            monkeypatch.setitem(fetch.OFFICIAL, "small", small)
            if fine:
                folder = fetch.locate("small", tmp_path / "here")
                assert (folder / "data.bin").read_bytes() == b"abc"
            else:
                with pytest.raises(DataError, match="could not be downloaded"):
                    fetch.locate("small", tmp_path / "here")
    finally:
        server.shutdown()
        server.server_close()


def test_an_image_folder_has_a_class_per_sub_folder(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
        (tmp_path / name).mkdir()
        for i in range(3):
            image.new("RGB", (50, 40), colour).save(tmp_path / name / f"{i}.png")
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / "._0.png").write_text("what macOS puts beside each file of an archive")
    source = SOURCES["image-folder"](DataLocation(path=tmp_path))
    assert source.class_names == ("cat", "dog")
    assert source.x.shape == (6, 3, 32, 32)
    assert source.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.x[0, :, 5, 5].tolist() == [255, 0, 0]
    (tmp_path / "dog" / "broken.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"broken\.png is not a readable image"):
        SOURCES["image-folder"](DataLocation(path=tmp_path))


def test_an_empty_image_folder_is_rejected_with_the_expected_layout(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no sub-folders with images"):
        SOURCES["image-folder"](DataLocation(path=tmp_path))
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match="cat has no images"):
        SOURCES["image-folder"](DataLocation(path=tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="should be a folder"):
        SOURCES["image-folder"](DataLocation(path=tmp_path / "file"))


def test_npz_files_hold_images_or_tables(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.zeros((4, 32, 32, 3), np.uint8), y=np.array(["b", "a", "b", "a"]))
    source = SOURCES["npz"](DataLocation(path=path))
    assert source.x.shape == (4, 3, 32, 32)
    assert source.class_names == ("a", "b")
    assert source.y.tolist() == [1, 0, 1, 0]
    np.savez(path, x=np.arange(8.0).reshape(4, 2), y=np.array([7, 3, 7, 9]))
    source = SOURCES["npz"](DataLocation(path=path))
    assert source.x.dtype == torch.float32
    assert source.class_names == ("3", "7", "9")


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((3, 2))}, "must contain x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, "integer or string"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "3 inputs and 4 labels"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3, int)}, "not finite"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "must be numbers"),
        ({"x": np.array([{}, {}], object), "y": np.zeros(2, int)}, "not a readable"),
    ],
)
def test_an_npz_file_with_wrong_arrays_is_rejected_with_a_reason(
    arrays: dict[str, Any], says: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=says):
        SOURCES["npz"](DataLocation(path=tmp_path / "bad.npz"))


def test_a_file_that_is_not_an_npz_archive_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 garbage")
    with pytest.raises(DataError, match="not a readable"):
        SOURCES["npz"](DataLocation(path=tmp_path / "bad.npz"))
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(DataError, match="not a readable"):
        SOURCES["npz"](DataLocation(path=tmp_path / "array.npy"))
    with pytest.raises(DataError, match="does not exist"):
        SOURCES["npz"](DataLocation(path=tmp_path / "none.npz"))
    with pytest.raises(ConfigError, match=r"data\.path: data\.name = 'npz' needs it"):
        SOURCES["npz"](DataLocation())


def test_a_source_rejects_wrong_labels_and_inputs() -> None:
    with pytest.raises(DataError, match="labels from 0 to 2"):
        Source("mine", torch.zeros(3, 2), torch.tensor([0, 1, 2]), ("a", "b"))
    assert sources.SOURCES.keys() >= fetch.OFFICIAL.keys()


def test_a_source_takes_arrays_of_any_number_type() -> None:
    x = np.arange(6.0).reshape(3, 2)
    source = Source("mine", x, np.array([0, 1, 1], np.int16), ("a", "b"))  # type: ignore[arg-type]
    assert source.x.dtype == torch.float32
    assert source.y.dtype == torch.int64
