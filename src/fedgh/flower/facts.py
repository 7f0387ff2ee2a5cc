"""The file federation.json in a client's folder: the federation as it was when the folder was made.

With it a client can try its app before it joins (`fedgh flower check`). The operator sends the same
settings with every request; those count, also if they differ.
"""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedgh.config import Config
from fedgh.errors import ConfigError, printable
from fedgh.files import read_bytes, write_atomic
from fedgh.flower.messages import MAX_JSON

PACKAGES = ("fedgh", "flwr", "torch")
"""Packages whose versions the server and the clients compare."""


@dataclass(frozen=True)
class Facts:
    """The content of federation.json."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    versions: Annotated[dict[str, str], Field(max_length=16)]  # on the operator's machine
    deadline: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # seconds for a round
    settings: dict[str, dict[str, Any]]  # of the experiment; see client.parse_settings

    @property
    def clients(self) -> int:
        """Number of clients; 0 if the settings lack it."""
        clients = self.settings.get("federation", {}).get("clients", 0)
        return clients if isinstance(clients, int) else 0

    @property
    def secure(self) -> bool:
        """True if uploads are masked."""
        return self.settings.get("secure", {}).get("enabled") is True

    @classmethod
    def of(cls, config: Config) -> "Facts":
        """Return the facts about a federation with this configuration."""
        return cls(versions(), config.run.deadline, settings_for_clients(config))

    @classmethod
    def read(cls, path: Path) -> "Facts":
        """Read the file; raise ConfigError if it is missing or not valid."""
        try:
            return TypeAdapter(cls).validate_json(read_bytes(path, MAX_JSON))
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{path} cannot be read ({printable(str(error))})") from None

    def write(self, path: Path) -> None:
        """Write the file."""
        write_atomic(path, TypeAdapter(Facts).dump_json(self, indent=2) + b"\n")


def versions() -> dict[str, str]:
    """Return the versions of PACKAGES on this machine."""
    return {package: version(package) for package in PACKAGES}


def settings_for_clients(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that the server sends to every client."""
    run = {"global_accuracy": config.run.global_accuracy, "max_norm": config.run.max_norm}
    return {**config.portable(), "run": run}
