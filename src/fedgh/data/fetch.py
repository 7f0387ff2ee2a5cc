"""Where the public data sets lie on disk, and how they get there.

Looked for in this order: the folder given (`data.dir`, `--data-dir`), `$FEDGH_DATA`, the user's
cache. What is nowhere is downloaded into the first of these that is set, and verified by hash.
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
    """A file to fetch, its MD5 as its authors publish it, and whether it is an archive."""

    url: str
    md5: str
    unpack: bool


@dataclass(frozen=True)
class Official:
    """A public data set: its folder, the files we read from it, and where they come from."""

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


def places(given: Path | None) -> list[Path]:
    """The folders that may hold data sets, best first."""
    env = os.environ.get("FEDGH_DATA")
    found = [given, Path(env) if env else None, Path(pooch.os_cache("fedgh"))]
    return [expanded(place) for place in found if place is not None]


def expanded(path: Path) -> Path:
    """The path with `~` replaced by a home folder."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: there is no such home folder on this machine") from None


def find(name: str, given: Path | None = None) -> Path | None:
    """The folder of a public data set; None if it is nowhere."""
    official = OFFICIAL[name]
    for root in places(given):
        folder = root / official.folder
        if all((folder / file).is_file() for file in official.files):
            return folder
    return None


def locate(name: str, given: Path | None = None, progress: Any = False) -> Path:
    """The folder of a public data set, downloaded first if it is nowhere.

    `progress` is what pooch takes: an object like a tqdm bar.
    """
    found = find(name, given)
    if found is not None:
        return found
    official = OFFICIAL[name]
    roots = places(given)
    folder = roots[0] / official.folder
    for item in official.downloads:
        _check_regular((roots[0] if item.unpack else folder) / _name(item))
    try:
        for item in official.downloads:
            # An archive unpacks to the folder itself; single files go into it.
            pooch.retrieve(
                item.url,
                known_hash=f"md5:{item.md5}",
                fname=_name(item),
                path=roots[0] if item.unpack else folder,
                processor=pooch.Untar(extract_dir=".") if item.unpack else None,
                progressbar=progress,
            )
    except Exception as error:  # pooch passes on whatever the network or the disk raises
        raise DataError(
            f"{name} is not here and could not be downloaded ({type(error).__name__}). Fetch "
            f"{' and '.join(item.url for item in official.downloads)} on a machine with "
            f"network{', unpack it' if official.downloads[0].unpack else ''}, and put "
            f"{', '.join(official.files)} into {folder} (or into a folder "
            f"{official.folder} under --data-dir or $FEDGH_DATA)."
        ) from None
    missing = [file for file in official.files if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{name}: the download did not bring {', '.join(missing)} to {folder}")
    return folder


def _name(item: Download) -> str:
    """The name of a file to fetch."""
    return item.url.rsplit("/", 1)[1]


def _check_regular(path: Path) -> None:
    """Raise DataError when a pipe or a device is in the place of a file that pooch would read."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; remove it")
