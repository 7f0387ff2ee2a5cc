"""Bytes on the sockets of a Flower federation: python -m benchmarks.wire [section.key=value]...

Clients reach the SuperLink through a relay that counts all bytes: tensors, the overhead of Flower's
messages, HTTP, TLS, and polling.
"""

import socket
import sys
import tempfile
from pathlib import Path
from threading import Lock, Thread

from fedgh import config
from fedgh.flower.deployment import Deployment, deployed, follow
from fedgh.flower.folder import FederationFolder


class Relay:
    """A relay that forwards connections to a port of this machine, and counts bytes."""

    def __init__(self, target: int) -> None:
        self.bytes = 0
        self._target = target
        self._lock = Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client = self._server.accept()[0]
            try:
                superlink = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the SuperLink has ended
                client.close()
                continue
            for pair in ((client, superlink), (superlink, client)):
                Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.bytes += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side has closed its connection
            source.close()
            sink.close()


def main(overrides: list[str]) -> None:
    settings = config.load(
        "demo", ["federation.clients=2", "data.classes_per_client=5", *overrides]
    )
    clients = settings.federation.clients
    with tempfile.TemporaryDirectory() as temporary:
        created = FederationFolder.create(Path(temporary) / "federation", settings)
        folder = FederationFolder.open(created.path)
        relays: list[Relay] = []
        environment = Deployment.environment

        def with_relay(self: Deployment, **variables: int) -> dict[str, str]:
            if not relays:
                relays.append(Relay(self._port))
            return {
                **environment(self, **variables),
                "FEDGH_SUPERLINK": f"127.0.0.1:{relays[0].port}",
            }

        Deployment.environment = with_relay  # type: ignore[method-assign]
        out = folder.path / "run"
        with deployed(folder, clients, print) as deployment:
            before = relays[0].bytes
            run = follow(deployment, deployment.train(out), out, lambda _: None)
            sockets = relays[0].bytes - before
        records = run.records()
    client_rounds = clients * len(records)
    seconds = sum(record.seconds["total"] for record in records)
    tensors, messages = records[-1].bytes_total, sum(record.wire_bytes for record in records)
    print(f"{settings.method.name}: {clients} clients, {len(records)} rounds, {seconds:.0f} s")
    for name, count in (("tensors", tensors), ("messages", messages), ("sockets", sockets)):
        print(f"{name:<9}{count / client_rounds:>10,.0f} bytes per client and round")


if __name__ == "__main__":
    main(sys.argv[1:])
