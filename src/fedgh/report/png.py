"""Encoding of pixels as a PNG file."""

import struct
import zlib


def png(height: int, width: int, channels: int, pixels: bytes) -> bytes:
    """Return the PNG file of pixels in rows: grey with one channel, RGB with three."""
    colour_type = {1: 0, 3: 2}[channels]
    row_bytes = width * channels
    rows = (pixels[start : start + row_bytes] for start in range(0, height * row_bytes, row_bytes))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
