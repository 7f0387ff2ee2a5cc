"""The folder of a federation: what `fedgh flower init` writes and `fedgh flower up` starts.

experiment.toml    what is trained
server/            the operator's: certificates, public keys, the app, start scripts
participants/K/    what participant K is given: its key, the authority to trust, a start script
"""

import re
import secrets
from importlib import resources
from pathlib import Path

from click import ClickException
from flwr.common.config import parse_config_args

from fedgh.config import Config
from fedgh.errors import ConfigError
from fedgh.files import make_folder, read_bytes, write_atomic
from fedgh.flower.keys import MAX_KEY, write_certificates, write_key_pair
from fedgh.version import __version__

FIRST_NODE_PORT = 9094
PORT = 9092
PUBLIC_PORT = 8443
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


class FederationFolder:
    """Where everything is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.server = path / "server"
        self.keys = self.server / "participants"
        self.participants = path / "participants"
        self.logs = path / "logs"
        self.processes = path / "processes.json"

    @classmethod
    def create(
        cls, path: Path, config: Config, *, host: str = "127.0.0.1", node_config: str = ""
    ) -> "FederationFolder":
        """Write a new one, with keys that exist nowhere else."""
        if not HOST.fullmatch(host):
            raise ConfigError(f"--host {host}: expected a name or address, without a port")
        try:
            parse_config_args([node_config] if node_config else None)
        except (ValueError, ClickException):
            raise ConfigError(
                f'--node-config {node_config}: expected pairs like key=1 other="text"'
            ) from None
        if path.exists() and any(path.iterdir()):
            raise ConfigError(f"{path} exists and is not empty; choose another folder")
        folder = cls(path)
        clients = config.federation.clients
        places = {
            "HOST": host,
            "PORT": str(PORT),
            "PUBLIC_PORT": str(PUBLIC_PORT),
            "CLIENTS": str(clients),
            "VERSION": __version__,
        }
        make_folder(folder.keys)
        write_certificates(folder.server, list(dict.fromkeys([host, "127.0.0.1", "localhost"])))
        secret = folder.server / "superexec.secret"
        write_atomic(secret, secrets.token_hex(32).encode(), 0o600)
        for name in ("superlink.sh", "superexec.sh", "flwr.sh", "register.sh", "train.sh"):
            _write(name, folder.server / name, places)
        _write("nginx.conf", folder.server / "nginx.conf", places)
        _write("app.toml", folder.server / "app" / "pyproject.toml", places)
        for client in range(clients):
            folder._write_participant(client, places, node_config)
        _write("README.md", path / "README.md", places)
        write_atomic(folder.experiment, config.to_toml().encode())  # last: now it exists
        return folder

    @classmethod
    def open(cls, path: Path) -> "FederationFolder":
        """One that is there."""
        folder = cls(path.absolute())
        if not folder.experiment.is_file() or not folder.keys.is_dir():
            raise ConfigError(
                f"{path} is not the folder of a federation (it has no experiment.toml and "
                f"server/); make one with: fedgh flower init {path}"
            )
        return folder

    def participant(self, client: int) -> Path:
        """The folder of a participant."""
        return self.participants / str(client)

    def _write_participant(self, client: int, places: dict[str, str], extra: str) -> None:
        own = self.participant(client)
        make_folder(own)
        write_key_pair(own / "key", own / "key.pub")
        write_atomic(self.keys / f"{client}.pub", read_bytes(own / "key.pub", MAX_KEY))
        write_atomic(own / "ca.crt", read_bytes(self.server / "ca.crt", MAX_KEY))
        settings = f'client={client}\nstate="states"\n{extra}\n'
        write_atomic(own / "node.conf", settings.encode())
        # Participants reach the SuperLink through the proxy, a rehearsal without it.
        port = str(PUBLIC_PORT)
        own_places = {"CLIENT": str(client), "NODE_PORT": str(FIRST_NODE_PORT + client)}
        _write("node.sh", own / "node.sh", {**places, **own_places, "PORT": port})


def _write(template: str, path: Path, places: dict[str, str]) -> None:
    text = (resources.files("fedgh.flower") / "templates" / template).read_text("utf-8")
    for name, value in places.items():
        text = text.replace(f"@{name}@", value)
    make_folder(path.parent)
    write_atomic(path, text.encode())
