"""The result of an audit as a file, audit.json, which is validated whenever it is read."""

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
"""Size limit of audit.json; the largest file that an audit writes has a tenth of it."""

MAX_ROWS = 1000

Whole = Annotated[int, Field(ge=0, lt=2**53)]
Share = Annotated[float, Field(ge=0, le=1)]
Decibel = Annotated[float, Field(ge=-1000, le=1000)]
Name = Annotated[str, Field(max_length=200)]
Extractor = Literal["known", "unknown"]


class AttackedUpload(Checked):
    """The class means or the second moment that were attacked, and the attacker."""

    extractor: Extractor  # "known" if the attacker has the target client's extractor
    size: Annotated[int, Field(ge=1, lt=2**53)]  # samples behind it, on average
    everything: bool  # true if these are all the client's samples, as in a real upload
    level: Level


class ReconstructionResult(AttackedUpload):
    """The similarity of images reconstructed from class means to the true images.

    `psnr` and `ssim` compare a reconstruction with the mean image of the samples behind the class
    mean; `nearest` is the PSNR to the most similar of these samples. The fields `…_without` are
    the baseline without a class mean: the attacker's own mean image of the class.
    """

    targets: Whole  # class means from which images were reconstructed
    psnr: Decibel
    psnr_without: Decibel
    gain: Decibel  # mean of psnr - psnr_without
    gain_error: Annotated[float, Field(ge=0, le=1000)]  # standard error of the gain
    ssim: Annotated[float, Field(ge=-1, le=1)]
    ssim_without: Annotated[float, Field(ge=-1, le=1)]
    nearest: Decibel
    nearest_without: Decibel


class MembershipResult(AttackedUpload):
    """The quality of an attack that separates samples behind an upload from others."""

    attack: Literal["likelihood ratio", "distance", "loss", "leverage"]
    against: Literal["left out", "held out", "other clients"]
    auc: Share
    low: Share  # 95% confidence interval of the AUC
    high: Share
    tpr: Share  # share of members detected at a false positive rate of 1%
    members: Whole
    others: Whole


class Picture(Checked):
    """Images in rows and columns, as pixels; the report makes the image file.

    So a run folder of a remote party brings no image file into a page.
    """

    rows: Annotated[list[Name], Field(max_length=50)]
    columns: Annotated[list[Name], Field(max_length=50)]
    height: Annotated[int, Field(ge=1, le=4000)]
    width: Annotated[int, Field(ge=1, le=4000)]
    channels: Literal[1, 3]
    pixels: Base64Bytes

    @classmethod
    def of(cls, rows: list[str], columns: list[str], sheet: Tensor) -> "Picture":
        """Make a picture from bytes [height, width, channels]."""
        height, width, channels = sheet.shape
        pixels = b64encode(sheet.contiguous().numpy().tobytes())
        size = {"height": height, "width": width, "channels": channels}
        return cls.model_validate({"rows": rows, "columns": columns, "pixels": pixels, **size})

    @model_validator(mode="after")
    def _check_size(self) -> "Picture":
        if len(self.pixels) != self.height * self.width * self.channels:
            raise ValueError("the number of pixels differs from height · width · channels")
        return self


class Audit(Checked):
    """The result of an audit of one client of a run."""

    method: Name
    attacked: Literal["class means", "moments"] = "class means"
    client: Whole
    round: Whole
    seed: Whole
    classes: Annotated[list[Name], Field(min_length=1, max_length=100)]  # those attacked
    sizes: Annotated[list[Whole], Field(max_length=100)]  # training samples of each
    auxiliary: Whole  # samples that the attacker has
    networks: Whole  # networks of other clients, for the attacker without the client's network
    width: Whole  # dimensions of a vector
    clip: Annotated[float, Field(ge=0, le=1e30)]
    delta: Share
    protected: Level  # the noise that the run itself adds to an upload
    sends_counts: bool
    reconstructed: Annotated[list[ReconstructionResult], Field(max_length=MAX_ROWS)]
    told: Annotated[list[MembershipResult], Field(max_length=MAX_ROWS)]
    pictures: Annotated[dict[Literal["samples", "sizes"], Picture], Field(max_length=2)]
    seconds: Annotated[float, Field(ge=0, le=1e12)] = 0.0


def write(folder: RunFolder, audit: Audit) -> Path:
    """Write audit.json into the run folder, and return its path."""
    path = _path(folder)
    write_atomic(path, audit.model_dump_json(indent=1).encode() + b"\n")
    return path


def read(folder: RunFolder) -> Audit | None:
    """Read audit.json; return None if the run was not audited. Raise RunError if it is invalid."""
    path = _path(folder)
    if not path.exists():
        return None
    try:
        return Audit.model_validate_json(read_bytes(path, MAX_BYTES))
    except (OSError, ValueError):
        raise RunError(
            f"{path} cannot be read; delete it, or write it again: fedgh audit"
        ) from None


def _path(folder: RunFolder) -> Path:
    return folder.path / "audit.json"
