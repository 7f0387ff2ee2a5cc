"""Find the files of standard data sets on disk, and download missing ones.

Folders are searched in this order: the given one (`data.dir`, `--data-dir`), `$FEDGH_DATA`, the
user's cache. A missing data set is downloaded into the first of them that is set, and verified by
its hash.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch

from fedgh.errors import ConfigError, DataError

_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


@dataclass(frozen=True)
class Download:
    """A file to download, its MD5 as published by its authors, and whether it is an archive."""

    url: str
    md5: str
    unpack: bool


@dataclass(frozen=True)
class Official:
    """A standard data set: its folder, the files that are read, and their downloads."""

    folder: str
    files: tuple[str, ...]
    downloads: tuple[Download, ...]


OFFICIAL = {
    "cifar10": Official(
        "cifar-10-batches-bin",
        (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        (Download(_CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", True),),
    ),
    "cifar100": Official(
        "cifar-100-binary",
        ("train.bin", "test.bin", "fine_label_names.txt"),
        (Download(_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", True),),
    ),
    "fashion-mnist": Official(
        "fashion-mnist",
        tuple(
            f"{part}-{kind}-ubyte.gz"
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ),
        tuple(
            Download(_FASHION + name, md5, False)
            for name, md5 in (
                ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
                ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
                ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
                ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
            )
        ),
    ),
}


def data_folders(given: Path | None) -> list[Path]:
    """Return the folders that may contain data sets, in the order in which they are searched."""
    env = os.environ.get("FEDGH_DATA")
    folders = [given, Path(env) if env else None, Path(pooch.os_cache("fedgh"))]
    return [expanded(folder) for folder in folders if folder is not None]


def expanded(path: Path) -> Path:
    """Return the path with `~` replaced by a home folder. Raise ConfigError if there is none."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: there is no such home folder on this machine") from None


def find(name: str, given: Path | None = None) -> Path | None:
    """Return the folder of a standard data set; None if it is not on this machine."""
    official = OFFICIAL[name]
    for root in data_folders(given):
        folder = root / official.folder
        if all((folder / file).is_file() for file in official.files):
            return folder
    return None


def locate(name: str, given: Path | None = None, progress: Any = False) -> Path:
    """Return the folder of a standard data set; download it first if it is missing.

    `progress` is passed to pooch: an object like a tqdm bar. Raise DataError if the download fails.
    """
    existing = find(name, given)
    if existing is not None:
        return existing
    official = OFFICIAL[name]
    roots = data_folders(given)
    folder = roots[0] / official.folder
    for item in official.downloads:
        _check_regular((roots[0] if item.unpack else folder) / _name(item))
    try:
        for item in official.downloads:
            # An archive contains the folder; single files are stored in it.
            pooch.retrieve(
                item.url,
                known_hash=f"md5:{item.md5}",
                fname=_name(item),
                path=roots[0] if item.unpack else folder,
                processor=pooch.Untar(extract_dir=".") if item.unpack else None,
                progressbar=progress,
            )
    except Exception as error:  # pooch passes on all errors of network and disk
        raise DataError(
            f"{name} is not on this machine and could not be downloaded ({type(error).__name__}). "
            f"Get {' and '.join(item.url for item in official.downloads)} on a machine with "
            f"network{', unpack it' if official.downloads[0].unpack else ''}, and put "
            f"{', '.join(official.files)} into {folder} (or into a folder "
            f"{official.folder} under --data-dir or $FEDGH_DATA)."
        ) from None
    missing = [file for file in official.files if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{name}: {', '.join(missing)} are missing in {folder} after the download")
    return folder


def _name(item: Download) -> str:
    """Return the file name of a download."""
    return item.url.rsplit("/", 1)[1]


def _check_regular(path: Path) -> None:
    """Raise DataError if a file that pooch would read is a pipe or a device."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; remove it")
