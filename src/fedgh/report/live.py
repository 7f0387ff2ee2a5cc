"""`fedgh watch`: the page of a run in progress, served to browsers on this machine only.

The server answers GET for two fixed paths.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from fedgh.errors import FedghError, one_line
from fedgh.local_server import REFUSAL, LocalServer
from fedgh.report.page import Page, fill
from fedgh.report.run_page import run_page, state_of
from fedgh.runs.read import name_runs
from fedgh.trained.confusion import read

WATCHED = (
    "config.toml",
    "rounds.jsonl",
    "summary.json",
    "confusion.json",
    "audit.json",
    "means/*.safetensors",
)
"""Files from which a page is made; the page is made again only when one of them changes."""


class LivePage:
    """The page of a run folder, made again only when the folder has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._files: list[tuple[str, int, int]] | None = None
        self._content = b""
        self._version = ""

    def content(self) -> tuple[bytes, str]:
        """Return the content that the page's script shows, as JSON, and its version."""
        with self._lock:
            files = self._file_versions()
            if files != self._files:
                self._content = json.dumps(self._make(), allow_nan=False).encode()
                self._version = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'
                self._files = files
            return self._content, self._version

    def html(self) -> bytes:
        """Return the page without content; its script then requests the content."""
        frame = {"title": "fedgh", "main": "", "charts": {}}
        return fill(frame, connect="'self'", live=True).encode()

    def _make(self) -> dict[str, Any]:
        try:
            (run,) = name_runs([self._path])
            return {**run_page([run], read).content(), "status": f"{run.label}: {state_of(run)}"}
        except Exception as error:
            # A file may be incomplete or damaged; the folder is read again when it changes.
            message = str(error) if isinstance(error, FedghError) else one_line(error)
            page = Page("fedgh", message, [])
            return {**page.content(), "status": "This run cannot be read."}

    def _file_versions(self) -> list[tuple[str, int, int]]:
        files = sorted(file for pattern in WATCHED for file in self._path.glob(pattern))
        versions = []
        for file in files:
            try:
                status = file.stat()
            except FileNotFoundError:  # it was deleted after the listing
                continue
            versions.append((file.name, status.st_mtime_ns, status.st_size))
        return versions


class LiveServer(ThreadingMixIn, LocalServer):
    """A server of one live page on this machine."""

    daemon_threads = True

    def __init__(self, path: Path, port: int = 0) -> None:
        self.page = LivePage(path)
        super().__init__(port, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 10  # seconds for a request to arrive

    def do_GET(self) -> None:
        """Send the page or its content; any other path or host is an error."""
        if not self.server.is_asked_by(self):
            self._answer(403, REFUSAL, "text/plain")
        elif self.path == "/":
            self._answer(200, self.server.page.html(), "text/html")
        elif self.path == "/content":
            content, version = self.server.page.content()
            if self.headers.get("If-None-Match") == version:
                self._answer(304, b"", "application/json", version)
            else:
                self._answer(200, content, "application/json", version)
        else:
            self._answer(404, b"not found\n", "text/plain")

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
        """Log no requests."""
