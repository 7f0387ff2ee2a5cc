"""A server with TLS that answers every request in the same way, in place of a SuperLink."""

import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class _Server(ThreadingHTTPServer):
    status = 400
    clock_ahead = 0.0  # seconds
    requests: list[tuple[str, str]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.server.requests.append((self.path, self.headers["flwr-public-key"]))
        self.send_response(self.server.status)
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.server.clock_ahead)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@contextmanager
def secure_server(
    certificate: Path, key: Path, status: int = 400, clock_ahead: float = 0.0
) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Run a server; yield its port, and the list of the paths and keys that it was asked about."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.status, server.clock_ahead, server.requests = status, clock_ahead, []
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # of refused handshakes
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_port, server.requests
        finally:
            server.shutdown()
            thread.join()
