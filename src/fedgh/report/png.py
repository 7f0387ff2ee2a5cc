"""Pixels as a PNG file."""

import struct
import zlib


def png(height: int, width: int, channels: int, pixels: bytes) -> bytes:
    """A picture of bytes in rows: grey with one channel, red, green and blue with three."""
    colour = {1: 0, 3: 2}[channels]
    across = width * channels
    rows = (pixels[start : start + across] for start in range(0, height * across, across))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
