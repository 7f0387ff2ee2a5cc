"""The page of a run while it goes on: a small server for browsers on this machine alone.

It answers GET for two fixed paths, and only to those who call it by its own name: a page from
elsewhere whose name was made to point here does not.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedgh.errors import FedghError, RunError, one_line
from fedgh.report.page import Page, fill
from fedgh.report.run_page import run_page, state_of
from fedgh.runs.read import name_runs
from fedgh.trained.confusion import read

ADDRESS = "127.0.0.1"
WATCHED = (
    "config.toml",
    "rounds.jsonl",
    "summary.json",
    "confusion.json",
    "audit.json",
    "means/*.safetensors",
)
"""What a page is made from; while none of it changes, the page does not."""


class LivePage:
    """The page of a run folder, made again only when the folder has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: list[tuple[str, int, int]] | None = None
        self._content = b""
        self._version = ""

    def content(self) -> tuple[bytes, str]:
        """What the page's script shows, as JSON, and a version that changes with it."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._content = json.dumps(self._make(), allow_nan=False).encode()
                self._version = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
                self._seen = seen
            return self._content, self._version

    def html(self) -> bytes:
        """The frame, which then asks for the content."""
        frame = {"title": "fedgh", "main": "", "charts": {}}
        return fill(frame, connect="'self'", live=True).encode()

    def _make(self) -> dict[str, Any]:
        try:
            (run,) = name_runs([self._path])
            return {**run_page([run], read).content(), "status": f"{run.label}: {state_of(run)}"}
        except Exception as error:
            # Somebody may be writing or have damaged it; it is looked at again when it changes.
            words = str(error) if isinstance(error, FedghError) else one_line(error)
            page = Page("fedgh", words, [])
            return {**page.content(), "status": "This run cannot be read."}

    def _look(self) -> list[tuple[str, int, int]]:
        files = sorted(file for pattern in WATCHED for file in self._path.glob(pattern))
        seen = []
        for file in files:
            try:
                status = file.stat()
            except FileNotFoundError:  # it has just been replaced or forgotten
                continue
            seen.append((file.name, status.st_mtime_ns, status.st_size))
        return seen


class LiveServer(ThreadingHTTPServer):
    """Serves one live page on this machine."""

    daemon_threads = True

    def __init__(self, path: Path, port: int = 0) -> None:
        self.page = LivePage(path)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used ({error.strerror}); choose another --port"
            ) from None

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def names(self) -> set[str]:
        """What a browser may call it."""
        return {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 10  # seconds for a request to arrive

    def do_GET(self) -> None:
        """Answer for the page, its content, or not at all."""
        if self.headers.get("Host") not in self.server.names():
            self._answer(403, b"this server is for this machine alone\n", "text/plain")
        elif self.path == "/":
            self._answer(200, self.server.page.html(), "text/html")
        elif self.path == "/content":
            content, version = self.server.page.content()
            if self.headers.get("If-None-Match") == version:
                self._answer(304, b"", "application/json", version)
            else:
                self._answer(200, content, "application/json", version)
        else:
            self._answer(404, b"there is nothing here\n", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str, version: str | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            **({"ETag": version} if version else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of requests."""
