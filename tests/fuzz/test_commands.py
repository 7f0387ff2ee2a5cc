"""Commands with damaged inputs: one line of error, an exit code, no traceback."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import inside


def _deep_config(place: Path) -> list[str]:
    (place / "deep.toml").write_text("a = " + "[" * 9_999)
    return ["run", str(place / "deep.toml")]


def _binary_config(place: Path) -> list[str]:
    (place / "binary.toml").write_bytes(bytes(range(256)))
    return ["run", str(place / "binary.toml")]


def _no_such_home(place: Path) -> list[str]:
    return ["run", "--data-dir", "~nobody-is-called-this/data"]


def _short_cifar(place: Path) -> list[str]:
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(bytes(3073))
    return ["partition", "--data-dir", str(place), "--set", "data.name=cifar10"]


def _broken_fashion(place: Path) -> list[str]:
    folder = place / "fashion-mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(b"")[:-4])
    return ["partition", "--data-dir", str(place), "--set", "data.name=fashion-mnist"]


def _pickled_npz(place: Path) -> list[str]:
    np.savez(place / "mine.npz", x=np.array([{}, {}], object), y=np.arange(2))
    return ["partition", "--set", "data.name=npz", "--set", f"data.path={place / 'mine.npz'}"]


def _npz_without_arrays(place: Path) -> list[str]:
    import zipfile

    with zipfile.ZipFile(place / "mine.npz", "w") as archive:
        archive.writestr("x", "text")
        archive.writestr("y", "text")
    return ["partition", "--set", "data.name=npz", "--set", f"data.path={place / 'mine.npz'}"]


def _garbage_to_resume(place: Path) -> list[str]:
    (place / "checkpoint").mkdir()
    for name in ("config.toml", "data.json", "rounds.jsonl", "checkpoint/server.safetensors"):
        (place / name).write_bytes(b"\xff\xfe" * 20)
    return ["resume", str(place)]


def _garbage_to_report(place: Path) -> list[str]:
    _garbage_to_resume(place)
    return ["report", str(place)]


@pytest.mark.parametrize(
    ("make_command", "code", "says"),
    [
        (_deep_config, 2, "deep.toml is not valid TOML"),
        (_binary_config, 2, "binary.toml cannot be read"),
        (_no_such_home, 2, "no such home folder"),
        (_short_cifar, 1, "data_batch_1.bin has 3,073 bytes instead of"),
        (_broken_fashion, 1, "train-images-idx3-ubyte.gz cannot be read"),
        (_pickled_npz, 1, "mine.npz is not a readable .npz file"),
        (_npz_without_arrays, 1, "mine.npz is not a readable .npz file: it must contain x and y"),
        (_garbage_to_resume, 1, "data.json cannot be read"),
        (_garbage_to_report, 1, "cannot be read"),
    ],
)
def test_a_damaged_input_gives_one_line_of_error(
    make_command: Callable[[Path], list[str]],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = make_command(tmp_path)
    assert inside(monkeypatch, *arguments) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err
