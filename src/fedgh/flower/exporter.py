"""Metrics of a federation for Prometheus, served to this machine only.

    http://127.0.0.1:PORT/metrics

The numbers are read from the federation's folder and the run folder, so another process than the
server can serve them. No text of a client becomes a part of a metric.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread, Timer
from typing import Any

from typing_extensions import override

from fedgh.errors import FedghError
from fedgh.flower.folder import FederationFolder
from fedgh.flower.status import FederationStatus, federation_status
from fedgh.local_server import REFUSAL, LocalServer

FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of Prometheus' text format."""

MAX_AGE = 1.0
"""Seconds for which an answer is used again, so that many requests cost no more than one."""

MAX_SECONDS = 5.0
"""Seconds after which a connection is closed, so that a slow one does not keep out others."""

MAX_CLIENTS = 1_000
"""Maximum number of clients with metrics of their own."""


@dataclass(frozen=True)
class MetricFamily:
    """A metric: its name, its kind, its description, and a value for each client or one for all."""

    name: str
    kind: str
    about: str
    values: dict[int | None, float | None]

    def lines(self) -> Iterator[str]:
        """Yield its lines in Prometheus' text format; nothing if no value is known."""
        known = {client: value for client, value in self.values.items() if value is not None}
        if not known:
            return
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for client, value in known.items():
            label = "" if client is None else f'{{client="{client}"}}'
            yield f"{self.name}{label} {float(value)!r}"


def exposition(status: FederationStatus) -> str:
    """Return the metrics of a federation in Prometheus' text format."""
    return "".join(f"{line}\n" for metric in _metrics(status) for line in metric.lines())


def _metrics(status: FederationStatus) -> Iterator[MetricFamily]:
    def gauge(name: str, about: str, value: float | None) -> MetricFamily:
        return MetricFamily(f"fedgh_{name}", "gauge", about, {None: value})

    def total(name: str, about: str, value: float) -> MetricFamily:
        return MetricFamily(f"fedgh_{name}_total", "counter", about, {None: value})

    current, clients = status.current, status.clients
    connected = [one.connected for one in clients if one.connected is not None]
    yield gauge("running", "1 if a server works on the run.", status.state == "running")
    yield gauge("finished", "1 if the run is finished.", status.state == "finished")
    yield gauge("failed", "1 if the last start ended with an error.", status.error is not None)
    yield gauge("server_silence_seconds", "Seconds since its last sign of life.", status.silence)
    yield gauge("rounds", "Rounds of the run.", status.rounds)
    yield gauge("rounds_completed", "Rounds that are completed.", status.rounds_completed)
    yield gauge("accuracy", "Mean accuracy in the last evaluated round.", status.accuracy)
    yield gauge("epsilon", "Highest epsilon of all clients so far.", status.epsilon)
    yield total("uploads", "Accepted uploads of all completed rounds.", status.uploads)
    yield total("failures", "Participants that failed, in all completed rounds.", status.failed)
    yield total("rejected", "Rejected uploads of all completed rounds.", status.rejected)
    yield total("bytes", "Bytes of tensors of all completed rounds.", status.bytes)
    yield total("wire_bytes", "Bytes of messages of all completed rounds.", status.wire_bytes)
    yield gauge("clients", "Clients whose keys the operator has.", len(clients))
    yield gauge("clients_connected", "Connected clients.", sum(connected) if connected else None)
    yield gauge("clients_excluded", "Excluded clients.", status.excluded)
    if current is not None:
        yield gauge("round", "Number of the round in progress.", current.round)
        yield gauge("round_age_seconds", "Seconds since this try of the round began.", current.age)
        yield gauge("round_deadline_seconds", "Longest duration of a try.", current.deadline)
        yield gauge("round_tries", "Deadlines that the round has had.", current.tries)
        yield gauge("round_asked", "Clients that the round needs.", current.asked)
        yield gauge("round_answered", "Clients that have answered.", current.answered)
        yield gauge("round_failed", "Clients that have failed.", current.failed)
        yield gauge("round_awaited", "Clients that have not answered.", len(current.awaited))
    known = clients[:MAX_CLIENTS]
    yield MetricFamily(
        "fedgh_client_connected",
        "gauge",
        "1 if the client is connected.",
        {one.client: one.connected for one in known},
    )
    yield MetricFamily(
        "fedgh_client_last_answer_age_seconds",
        "gauge",
        "Seconds since the last answer of the client.",
        {one.client: one.last_answer_age for one in known},
    )


class MetricsServer(LocalServer):
    """A server of the metrics of one federation.

    It handles one request at a time, for at most MAX_SECONDS.
    """

    path = "/metrics"
    port_option = "--port, or --metrics of up"

    def __init__(self, folder: FederationFolder, out: Path, port: int) -> None:
        self._folder, self._out = folder, out
        self._made, self._answer = -MAX_AGE, (200, b"")
        super().__init__(port, _MetricsHandler)

    def answer(self) -> tuple[int, bytes]:
        """Return the HTTP status and the metrics, or an error."""
        if time.monotonic() - self._made >= MAX_AGE:
            try:
                status = federation_status(self._folder, self._out)
                self._answer = 200, exposition(status).encode()
            except (FedghError, OSError) as error:
                self._answer = 503, f"{error}\n".encode()
            self._made = time.monotonic()
        return self._answer

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        timer = Timer(MAX_SECONDS, _hang_up, [request])
        timer.start()
        try:
            super().process_request(request, client_address)
        finally:
            timer.cancel()


@contextmanager
def serving(folder: FederationFolder, out: Path, port: int) -> Iterator[MetricsServer]:
    """Serve the metrics of a federation in a thread for the duration of the block."""
    with MetricsServer(folder, out, port) as server:
        Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        request.shutdown(socket.SHUT_RDWR)


class _MetricsHandler(BaseHTTPRequestHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        """Send the metrics; any other path or host is an error."""
        if not self.server.is_asked_by(self):
            status, body = 403, REFUSAL
        elif self.path != self.server.path:
            status, body = 404, b"not found\n"
        else:
            status, body = self.server.answer()
        self.send_response(status)
        self.send_header("Content-Type", FORMAT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no requests."""
