"""Servers for this machine only: errors of a request."""

import http.client
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from threading import Thread

import pytest

from fedgh.local_server import LocalServer


@pytest.mark.parametrize(
    ("error", "printed"), [(BrokenPipeError(), ""), (ValueError("a mistake"), "a mistake")]
)
def test_errors_are_printed_but_not_those_of_a_closed_connection(
    error: Exception, printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            raise error

    with LocalServer(0, Failing) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        with suppress(http.client.HTTPException):
            connection.request("GET", "/")
            connection.getresponse()
        connection.close()
        thread.join()
    shown = capfd.readouterr().err
    assert (printed in shown) if printed else shown == ""
