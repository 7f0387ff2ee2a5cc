"""The folder of a federation, which `fedgh flower init` writes and `fedgh flower up` starts.

experiment.toml    the configuration of the experiment
server/            for the operator: certificates, public keys, the app, start scripts
participants/K/    for client K: its key, the certificate of the authority, a start script;
                   with secure aggregation the public keys of all clients, in peers/
services/          in the folder of each side: files for systemd and Docker
"""

import re
from importlib import resources
from pathlib import Path

from click import ClickException
from flwr.common.config import parse_config_args

from fedgh.config import Config
from fedgh.errors import ConfigError
from fedgh.files import make_folder, read_bytes, replace, sync_folder, write_atomic
from fedgh.flower.facts import Facts
from fedgh.flower.keys import MAX_KEY, write_certificates, write_key_pair, write_secret
from fedgh.version import __version__

FIRST_NODE_PORT = 9094
PORT = 9092
PUBLIC_PORT = 8443
SERVER_SCRIPTS = (
    *("superlink.sh", "superexec.sh", "flwr.sh", "register.sh", "revoke.sh"),
    *("train.sh", "resume.sh"),
)
TEMPLATES = resources.files("fedgh.flower") / "templates"
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
MAX_HOST, MAX_LABEL = 253, 63
"""Maximum numbers of characters of a host name in the DNS, and of its parts between dots."""


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
        check_host(host)
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
        write_secret(folder.server / "superexec.secret")
        for name in SERVER_SCRIPTS:
            _write(name, folder.server / name, values)
        _write("nginx.conf", folder.server / "nginx.conf", values)
        _write("app.toml", folder.server / "app" / "pyproject.toml", values)
        _write_services("server", folder.server, values)
        facts = Facts.of(config)
        for client in range(clients):
            folder._write_participant(client, values, node_config, facts)
        if config.secure.enabled:
            folder._write_peers(clients)
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

    def _write_peers(self, clients: int) -> None:
        """Write the public keys of all clients into the folder of each."""
        keys = {
            f"{client}.pub": read_bytes(self.keys / f"{client}.pub", MAX_KEY)
            for client in range(clients)
        }
        for client in range(clients):
            peers = self.participant(client) / "peers"
            make_folder(peers)
            for name, key in keys.items():
                replace(peers / name, key)
            sync_folder(peers)

    def _write_participant(
        self, client: int, values: dict[str, str], node_config: str, facts: Facts
    ) -> None:
        """Write the folder of a client; `node_config` are settings to add to its node.conf."""
        folder = self.participant(client)
        make_folder(folder)
        write_key_pair(folder / "key", folder / "key.pub")
        write_atomic(self.keys / f"{client}.pub", read_bytes(folder / "key.pub", MAX_KEY))
        write_atomic(folder / "ca.crt", read_bytes(self.server / "ca.crt", MAX_KEY))
        facts.write(folder / "federation.json")
        settings = f'client={client}\nstate="states"\n{node_config}\n'
        write_atomic(folder / "node.conf", settings.encode())
        # Clients reach the SuperLink through the proxy; a rehearsal overrides the address.
        client_values = {
            "CLIENT": str(client),
            "NODE_PORT": str(FIRST_NODE_PORT + client),
            "PORT": str(PUBLIC_PORT),
        }
        values = {**values, **client_values}
        _write("node.sh", folder / "node.sh", values)
        _write_services("node", folder, values)


def check_host(host: str) -> None:
    """Raise ConfigError if this cannot be a name or address of a machine."""
    too_long = len(host) > MAX_HOST or any(len(part) > MAX_LABEL for part in host.split("."))
    if too_long or not HOST.fullmatch(host):
        raise ConfigError(f"--host {host}: expected a name or address, without a port")


def _write_services(side: str, folder: Path, values: dict[str, str]) -> None:
    """Write the files for systemd and Docker of a side, "server" or "node", into `services`."""
    values = {**values, "HARDENING": _template("services/hardening.conf").rstrip()}
    for item in (TEMPLATES / "services" / side).iterdir():
        _write(f"services/{side}/{item.name}", folder / "services" / item.name, values)


def _write(template: str, path: Path, values: dict[str, str]) -> None:
    """Write a template to a file, with each @NAME@ replaced by its value."""
    text = _template(template)
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    make_folder(path.parent)
    write_atomic(path, text.encode())


def _template(name: str) -> str:
    return (TEMPLATES / name).read_text("utf-8")
