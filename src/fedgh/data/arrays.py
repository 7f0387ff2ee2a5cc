"""Read arrays from untrusted .npy and .npz files.

The declared size of an array is compared with the bytes in the file before memory is allocated, and
the size of decompressed arrays with the size of the file. Nothing is unpickled.
"""

import io
import math
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedgh.data.files import explained
from fedgh.files import open_regular

MAX_UNPACKED = 256 * 2**20
"""Bytes of decompressed arrays of a small file; with the copies that are made of them they stay
below a gigabyte."""

MAX_RATIO = 20
"""Size of arrays above MAX_UNPACKED, as a multiple of the file's size. Measured data are compressed
less than that, zeros a thousand times."""

MAX_HEADER = 2**14
"""Bytes that are searched for the header of an array; numpy refuses one above 10,000."""

_VERSIONS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1


@dataclass(frozen=True)
class _Header:
    """The dtype and shape that the header of an array declares."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def used(self) -> int:
        """Bytes of memory that the array and its copies take.

        Images are not copied, labels are sorted with their positions, other arrays become float32.
        """
        images = self.dtype == np.uint8 and len(self.shape) == 4
        copies = 0 if images else 16 if len(self.shape) == 1 else 4
        return math.prod(self.shape) * (self.dtype.itemsize + copies)


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in a .npy file. Raise DataError if it cannot be read."""
    with (
        explained(path, ".npy file", "save it again with np.save"),
        open_regular(path, follow=True) as file,
    ):
        _header(file, _size(file))
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def read_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return the arrays of these names in a .npz file. Raise DataError if it cannot be read."""
    with (
        explained(path, ".npz file", "save it again with np.savez"),
        open_regular(path, follow=True) as file,
        zipfile.ZipFile(file) as archive,
    ):
        entries = _entries(archive, names)
        used = sum(_header_in(archive, entry).used for entry in entries)
        if used > max(MAX_UNPACKED, MAX_RATIO * _size(file)):
            raise ValueError(
                f"it has {_size(file):,} bytes, and its arrays would take {used:,}; "
                "so large arrays are read only from a file that is not compressed"
            )
        return [_array_in(archive, entry) for entry in entries]


def _entries(archive: zipfile.ZipFile, names: tuple[str, ...]) -> list[zipfile.ZipInfo]:
    """Return the entries of these arrays. Raise ValueError if numpy did not write the archive."""
    by_name = {entry.filename: entry for entry in archive.infolist()}
    if len(by_name) < len(archive.infolist()):
        raise ValueError("it has two entries of one name")
    if any(entry.is_dir() for entry in by_name.values()):
        raise ValueError("there is a folder in it")
    if any(f"{name}.npy" not in by_name for name in names):
        listed = ", ".join(by_name) or "nothing"
        raise ValueError(f"it must contain {' and '.join(names)}; it has {listed}")
    entries = [by_name[f"{name}.npy"] for name in names]
    if any(entry.flag_bits & _ENCRYPTED for entry in entries):
        raise ValueError("it is encrypted")
    if any(entry.compress_type not in _METHODS for entry in entries):
        raise ValueError("it is compressed in a way that numpy does not use")
    return entries


def _header_in(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Header:
    with archive.open(entry) as stream:
        return _header(stream, entry.file_size)


def _array_in(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as stream:
        return npy.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes], size: int) -> _Header:
    """Return the header of an array. Raise ValueError unless header and array take `size` bytes."""
    head = io.BytesIO(stream.read(MAX_HEADER))  # the length that the file declares is untrusted
    version = npy.read_magic(head)
    if version not in _VERSIONS:
        raise ValueError(f"version {version} of the format is unknown")
    shape, _, dtype = _VERSIONS[version](head)
    if dtype.kind in "OV":
        raise ValueError("Object arrays and structured arrays are not supported")
    if min(shape, default=0) < 0 or head.tell() + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{dtype} {shape} does not match its size of {size:,} bytes")
    return _Header(shape, dtype)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size
