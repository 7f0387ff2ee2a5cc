"""HTTP servers for this machine only.

They listen on 127.0.0.1, and answer only if the Host header is their own address. This blocks pages
of other sites whose name was made to resolve to this machine (DNS rebinding).
"""

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from typing_extensions import override

from fedgh.errors import RunError

ADDRESS = "127.0.0.1"

REFUSAL = b"this server only serves this machine\n"
"""The answer to a request with another Host header; its status is 403."""


class LocalServer(HTTPServer):
    """A server on a port of this machine; 0 is any free port."""

    path = "/"  # of the main page
    port_option = "--port"  # of the command that starts it

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        try:
            super().__init__((ADDRESS, port), handler)
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used ({error.strerror}); choose another {self.port_option}"
            ) from None

    @property
    def url(self) -> str:
        """The address of the main page."""
        return f"http://{ADDRESS}:{self.server_port}{self.path}"

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a connection that was closed too early; print any other error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def is_asked_by(self, handler: BaseHTTPRequestHandler) -> bool:
        """Return True if the request names this machine in its Host header."""
        names = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        return handler.headers.get("Host") in names
