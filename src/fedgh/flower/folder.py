"""The folder of a federation, which `fedgh flower init` writes and `fedgh flower up` starts.

experiment.toml    the configuration of the experiment
server/            for the operator: certificates, public keys, the app, start scripts
participants/K/    for client K: its key, the certificate of the authority, a start script
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
    """The paths of a federation's files, and functions that create them."""

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
        """Write a new folder, with new keys; raise ConfigError if it exists and is not empty."""
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
        values = {
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
            _write(name, folder.server / name, values)
        _write("nginx.conf", folder.server / "nginx.conf", values)
        _write("app.toml", folder.server / "app" / "pyproject.toml", values)
        for client in range(clients):
            folder._write_participant(client, values, node_config)
        _write("README.md", path / "README.md", values)
        write_atomic(folder.experiment, config.to_toml().encode())  # last: `open` looks for it
        return folder

    @classmethod
    def open(cls, path: Path) -> "FederationFolder":
        """Return the folder at `path`; raise ConfigError if it is not that of a federation."""
        folder = cls(path.absolute())
        if not folder.experiment.is_file() or not folder.keys.is_dir():
            raise ConfigError(
                f"{path} is not the folder of a federation (it has no experiment.toml and "
                f"server/); create one with: fedgh flower init {path}"
            )
        return folder

    def participant(self, client: int) -> Path:
        """Return the folder of a client."""
        return self.participants / str(client)

    def _write_participant(self, client: int, values: dict[str, str], node_config: str) -> None:
        """Write the folder of a client; `node_config` are settings to add to its node.conf."""
        folder = self.participant(client)
        make_folder(folder)
        write_key_pair(folder / "key", folder / "key.pub")
        write_atomic(self.keys / f"{client}.pub", read_bytes(folder / "key.pub", MAX_KEY))
        write_atomic(folder / "ca.crt", read_bytes(self.server / "ca.crt", MAX_KEY))
        settings = f'client={client}\nstate="states"\n{node_config}\n'
        write_atomic(folder / "node.conf", settings.encode())
        # Clients reach the SuperLink through the proxy; a rehearsal overrides the address.
        client_values = {
            "CLIENT": str(client),
            "NODE_PORT": str(FIRST_NODE_PORT + client),
            "PORT": str(PUBLIC_PORT),
        }
        _write("node.sh", folder / "node.sh", {**values, **client_values})


def _write(template: str, path: Path, values: dict[str, str]) -> None:
    """Write a template to a file, with each @NAME@ replaced by its value."""
    text = (resources.files("fedgh.flower") / "templates" / template).read_text("utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    make_folder(path.parent)
    write_atomic(path, text.encode())
