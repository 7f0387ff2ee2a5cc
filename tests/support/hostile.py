"""Small files that declare large sizes, and limits of time and memory for reading them."""

import io
import resource
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_SECONDS = 5
MAX_GROWTH = 2**30
"""Bytes by which the memory of a process may grow."""

MIB = 2**20


@contextmanager
def cheap() -> Iterator[None]:
    """Fail if the block takes too much time or memory."""
    start, before = time.monotonic(), _peak()
    yield
    assert time.monotonic() - start < MAX_SECONDS
    assert _peak() - before < MAX_GROWTH


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return the header of an .npy file of this type and shape."""
    words = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return by_hand(words)


def by_hand(words: bytes) -> bytes:
    """Return the header of an .npy file with this text."""
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words


@dataclass(frozen=True)
class Entry:
    """A file in an archive, and the metadata that the archive declares for it."""

    name: bytes
    content: bytes  # as it lies there
    size: int  # that it claims to unpack to
    method: int = 8
    flags: int = 0
    crc: int = 0


def stored(name: bytes, content: bytes) -> Entry:
    """Return an uncompressed entry with correct metadata."""
    return Entry(name, content, len(content), method=0, crc=zlib.crc32(content))


def zeros(name: bytes, start: bytes, mebibytes: int) -> Entry:
    """Return an entry of some bytes followed by zeros, compressed to a thousandth."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    many = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    crc, page = zlib.crc32(start), bytes(MIB)
    for _ in range(mebibytes):
        crc = zlib.crc32(page, crc)
    content = first + mebibytes * many + b"\x03\x00"
    return Entry(name, content, len(start) + mebibytes * MIB, crc=crc)


def zip_of(*entries: Entry) -> bytes:
    """Return an archive with the declared metadata of its entries, in zip64 above 4 GiB."""
    out, listed = io.BytesIO(), b""
    for entry in entries:
        size, extra = entry.size, b""
        if size >= 2**32:
            size, extra = 2**32 - 1, struct.pack("<HHQ", 1, 8, entry.size)
        fields = struct.pack(
            "<HHHHHIIIHH",
            *(45, entry.flags, entry.method, 0, 33, entry.crc, len(entry.content), size),
            *(len(entry.name), len(extra)),
        )
        listed += b"PK\x01\x02\x2d\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, out.tell())
        listed += entry.name + extra
        out.write(b"PK\x03\x04" + fields + entry.name + extra + entry.content)
    start = out.tell()
    out.write(listed + b"PK\x05\x06\0\0\0\0")
    out.write(struct.pack("<HHIIH", len(entries), len(entries), len(listed), start, 0))
    return out.getvalue()


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """Return a grey PNG file that declares this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def bmp_in_runs(width: int, height: int, runs: bytes) -> bytes:
    """Return a BMP file with run-length encoding."""
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    colours = bytes(range(256)) * 4
    start = 14 + len(about) + len(colours)
    head = b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start)
    return head + about + colours + runs


def tiled_tiff(width: int, height: int, kind: int = 4) -> bytes:
    """Return a TIFF file of 16 x 16 grey pixels in one tile of another size."""
    tile = zlib.compress(bytes(MIB)) if width * height < MIB else _zlib_zeros(width * height // MIB)
    tags = [(256, 4, 16), (257, 4, 16), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    tags += [(322, kind, width), (323, kind, height), (324, 4, 0), (325, 4, len(tile))]
    start = 8 + 2 + 12 * len(tags) + 4
    rows = [struct.pack("<HHII", *(tag, type_, 1, value or start)) for tag, type_, value in tags]
    head = b"II*\0" + struct.pack("<IH", 8, len(tags))
    return head + b"".join(rows) + bytes(4) + tile


def _zlib_zeros(mebibytes: int) -> bytes:
    packer = zlib.compressobj(9)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    many = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + (mebibytes - 1) * many + packer.flush()


def jpeg_of_scans(whole: bytes, count: int) -> bytes:
    """Return a progressive JPEG file with its last scan repeated `count` times."""
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + count * whole[last:-2] + whole[-2:]
