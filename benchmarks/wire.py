"""What a federation on Flower really sends: python -m benchmarks.wire [section.key=value]...

Participants reach the SuperLink through a relay that counts the bytes on its sockets: tensors,
what Flower wraps them in, HTTP, TLS, and the polling in between.
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
    """Passes connections on to a port of this machine, and counts."""

    def __init__(self, target: int) -> None:
        self.bytes = 0
        self._target = target
        self._lock = Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near = self._server.accept()[0]
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the SuperLink has ended
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    self.bytes += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side has gone
            source.close()
            sink.close()


def main(overrides: list[str]) -> None:
    settings = config.load(
        "demo", ["federation.clients=2", "data.classes_per_client=5", *overrides]
    )
    clients = settings.federation.clients
    with tempfile.TemporaryDirectory() as place:
        made = FederationFolder.create(Path(place) / "federation", settings)
        folder = FederationFolder.open(made.path)
        relays: list[Relay] = []
        environment = Deployment.environment

        def through_a_relay(self: Deployment, **variables: int) -> dict[str, str]:
            if not relays:
                relays.append(Relay(self._port))
            return {
                **environment(self, **variables),
                "FEDGH_SUPERLINK": f"127.0.0.1:{relays[0].port}",
            }

        Deployment.environment = through_a_relay  # type: ignore[method-assign]
        out = folder.path / "run"
        with deployed(folder, clients, print) as deployment:
            before = relays[0].bytes
            run = follow(deployment, deployment.train(out), out, lambda _: None)
            sockets = relays[0].bytes - before
        records = run.records()
    asked = clients * len(records)
    seconds = sum(record.seconds["total"] for record in records)
    tensors, wrapped = records[-1].bytes_total, sum(record.wire_bytes for record in records)
    print(f"{settings.method.name}: {clients} clients, {len(records)} rounds, {seconds:.0f} s")
    for name, count in (("tensors", tensors), ("messages", wrapped), ("sockets", sockets)):
        print(f"{name:<9}{count / asked:>10,.0f} bytes per client and round")


if __name__ == "__main__":
    main(sys.argv[1:])
