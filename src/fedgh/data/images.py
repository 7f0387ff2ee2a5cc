"""Read untrusted image files.

A small file can declare many pixels, or make a decoder process them many times. Images that would
take gigabytes or minutes are refused before they are decoded.
"""

import io
import re
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgh.data.files import explained
from fedgh.errors import DataError
from fedgh.files import read_bytes

IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")

MAX_IMAGE = 2**28
"""Bytes of an image file: MAX_PIXELS of four bytes each."""

MAX_PIXELS = 2**26
"""Pixels of an image: most cameras take fewer, and decoders need up to twelve bytes per pixel."""

MAX_WEBP_PIXELS = 2**25
"""Pixels of a WebP image: its decoder keeps four copies, sixteen bytes per pixel."""

MAX_PASSES = 32
"""Passes of a decoder over MAX_PIXELS pixels: usual JPEG files have up to 18 scans."""

_JPEG_MARKER = re.compile(
    rb"\xff([^\x00\x01\xd0-\xd7\xff])"
)  # only markers that are followed by a length
_SCAN, _END = 0xDA, 0xD9
_ARITHMETIC = range(0xC9, 0xD0)
_TILE_WIDTH, _TILE_HEIGHT = 322, 323
_BIG_TIFF = 43


def images_in(folder: Path) -> list[Path]:
    """Return the image files in a folder and its sub-folders by name, without hidden files."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGE_ENDINGS and not file.name.startswith(".")
    )


def read_image(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Return an image scaled to a shape (channels, height, width), in grey or RGB.

    Raise DataError if it cannot be read.
    """
    with explained(
        path, "image", "replace it by a PNG of at most 8,192 x 8,192 pixels, or remove it"
    ):
        decoded = _decoded(read_bytes(path, MAX_IMAGE, follow=True), shape)
    return torch.from_numpy(decoded).view(*shape[1:], shape[0]).permute(2, 0, 1)


def pixels(image: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return a Pillow image as bytes [height, width, channels], scaled to a shape (c, h, w).

    Of 16-bit values the upper eight bits are used, because Pillow would clip values above 255.
    Raise DataError for 32-bit images, whose range is unknown.
    """
    from PIL import Image

    channels, height, width = shape
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError("the range of a 32-bit image is unknown; convert it to 8 or 16 bits")
    return np.array(image.convert("L" if channels == 1 else "RGB").resize((width, height)))


def _decoded(content: bytes, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the first image in the bytes of a file. Raise ValueError if it is not acceptable."""
    from PIL import Image, UnidentifiedImageError  # only needed here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks below cover what Pillow warns about
        try:
            image = Image.open(io.BytesIO(content), formats=IMAGE_FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"it is none of {', '.join(IMAGE_FORMATS)}") from None
        with image:
            _check_size(image)
            _check_decoder(image, content)
            return pixels(image, shape)


def _check_size(image: Any) -> None:
    """Raise ValueError if an image has too many pixels."""
    limit = MAX_WEBP_PIXELS if image.format == "WEBP" else MAX_PIXELS
    if image.width * image.height > limit:
        raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, more than {limit:,}")


def _check_decoder(image: Any, content: bytes) -> None:
    """Raise ValueError if decoding would take much longer than the number of pixels suggests."""
    from PIL.Image import DECODERS  # decoders in Python, which process single pixels

    if any(tile[0] in DECODERS for tile in image.tile):
        raise ValueError(f"{image.format} as text, in runs or with unusual levels is slow to read")
    if image.format in ("JPEG", "MPO"):
        kinds = jpeg_markers(content)
        if kinds.count(_SCAN) * image.width * image.height > MAX_PASSES * MAX_PIXELS:
            raise ValueError("it has too many scans")
        if any(kind in _ARITHMETIC for kind in kinds):
            raise ValueError("arithmetic coding is slow to read")
    if image.format == "TIFF" and {_TILE_WIDTH, _TILE_HEIGHT} & tiff_tags(content):
        raise ValueError("it is made of tiles, which may be larger than the image")


def jpeg_markers(content: bytes) -> list[int]:
    """Return the kinds of the segments of the first image in a JPEG file."""
    kinds: list[int] = []
    position = 2
    while _END not in kinds[-1:] and (marker := _JPEG_MARKER.search(content, position)):
        kinds.append(marker[1][0])
        position = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    return kinds


def tiff_tags(content: bytes) -> set[int]:
    """Return the tags of the first image in a TIFF file, also those that Pillow ignores."""
    order: Literal["little", "big"] = "little" if content.startswith(b"II") else "big"

    def number(position: int, size: int) -> int:
        return int.from_bytes(content[position : position + size], order)

    big = number(2, 2) == _BIG_TIFF
    start = number(8, 8) if big else number(4, 4)
    count, width, step = (number(start, 8), 8, 20) if big else (number(start, 2), 2, 12)
    return {number(position, 2) for position in range(start + width, len(content), step)[:count]}
