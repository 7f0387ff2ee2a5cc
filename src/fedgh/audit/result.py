"""What an audit found: audit.json, written once, and checked whenever it is read."""

from base64 import b64encode
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Base64Bytes, Field, model_validator
from torch import Tensor

from fedgh.audit.noise import Level
from fedgh.core.records import Checked
from fedgh.errors import RunError
from fedgh.files import read_bytes, write_atomic
from fedgh.runs.folder import RunFolder

MAX_BYTES = 10_000_000
"""Of audit.json; the largest that an audit writes is a tenth of that."""

MAX_ROWS = 1000

Whole = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Decibel = Annotated[float, Field(ge=-1000, le=1000)]
Name = Annotated[str, Field(max_length=200)]
Extractor = Literal["known", "unknown"]


class Means(Checked):
    """Which class means or second moment were attacked, and by whom."""

    extractor: Extractor  # of the victim: does the attacker have it?
    size: Annotated[int, Field(ge=1, lt=2**53)]  # samples behind it, on average
    everything: bool  # whether these are all that the victim has: what it really sends
    level: Level


class Reconstructed(Means):
    """How near images come that were made from class means; beside it, without the means.

    `psnr` and `ssim` compare with the mean image of the samples behind a class mean, `nearest` is
    the PSNR to the sample that is most like the image. What is `without` the means is the
    attacker's own mean image of the class.
    """

    targets: Whole
    psnr: Decibel
    psnr_without: Decibel
    gain: Decibel  # the mean of the differences between the two
    gain_error: Annotated[float, Field(ge=0, le=1000)]  # its standard error over the targets
    ssim: Annotated[float, Field(ge=-1, le=1)]
    ssim_without: Annotated[float, Field(ge=-1, le=1)]
    nearest: Decibel
    nearest_without: Decibel


class Told(Means):
    """How well an attack tells samples behind an upload from others."""

    attack: Literal["likelihood ratio", "distance", "loss", "leverage"]
    against: Literal["left out", "held out", "other clients"]
    auc: Share
    low: Share
    high: Share
    tpr: Share  # of members found at 1% false alarms
    members: Whole
    others: Whole


class Picture(Checked):
    """Images in rows and columns, as pixels: whoever shows them makes the file."""

    rows: Annotated[list[Name], Field(max_length=50)]
    columns: Annotated[list[Name], Field(max_length=50)]
    height: Annotated[int, Field(ge=1, le=4000)]
    width: Annotated[int, Field(ge=1, le=4000)]
    channels: Literal[1, 3]
    pixels: Base64Bytes

    @classmethod
    def of(cls, rows: list[str], columns: list[str], sheet: Tensor) -> "Picture":
        """A sheet of bytes [height, width, channels]."""
        height, width, channels = sheet.shape
        pixels = b64encode(sheet.contiguous().numpy().tobytes())
        size = {"height": height, "width": width, "channels": channels}
        return cls.model_validate({"rows": rows, "columns": columns, "pixels": pixels, **size})

    @model_validator(mode="after")
    def _whole(self) -> "Picture":
        if len(self.pixels) != self.height * self.width * self.channels:
            raise ValueError("other pixels than its size says")
        return self


class Audit(Checked):
    """An audit of one client of a run."""

    method: Name
    attacked: Literal["class means", "moments"] = "class means"
    client: Whole
    round: Whole
    seed: Whole
    classes: Annotated[list[Name], Field(min_length=1, max_length=100)]  # those attacked
    sizes: Annotated[list[Whole], Field(max_length=100)]  # training samples of each
    auxiliary: Whole  # samples that the attacker has
    networks: Whole  # of other clients, that an attacker without the victim's has
    width: Whole  # numbers in a vector
    clip: Annotated[float, Field(ge=0, le=1e30)]
    delta: Share
    protected: Level  # how the run itself protects an upload
    sends_counts: bool
    reconstructed: Annotated[list[Reconstructed], Field(max_length=MAX_ROWS)]
    told: Annotated[list[Told], Field(max_length=MAX_ROWS)]
    pictures: Annotated[dict[Literal["samples", "sizes"], Picture], Field(max_length=2)]
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0


def write(folder: RunFolder, audit: Audit) -> Path:
    """Keep what was found in the run folder."""
    path = _path(folder)
    write_atomic(path, audit.model_dump_json(indent=1).encode() + b"\n")
    return path


def read(folder: RunFolder) -> Audit | None:
    """What was found; None when nobody has looked."""
    path = _path(folder)
    if not path.exists():
        return None
    try:
        return Audit.model_validate_json(read_bytes(path, MAX_BYTES))
    except (OSError, ValueError):
        raise RunError(f"{path} cannot be read; delete it, or make it again: fedgh audit") from None


def _path(folder: RunFolder) -> Path:
    return folder.path / "audit.json"
