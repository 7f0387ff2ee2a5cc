"""The live page is served to this machine only, is up to date, and is made only after changes."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgh.errors import RunError
from fedgh.report import live
from fedgh.report.live import LivePage, LiveServer
from fedgh.report.page import Page
from fedgh.report.run_page import Measure, run_page
from fedgh.runs.read import NamedRun
from tests.report.parts import cut

TIMEOUT = 120  # seconds; far more than needed, because the machine may be busy


@contextmanager
def serving(path: Path) -> Iterator[LiveServer]:
    with LiveServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(TIMEOUT)


def request(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=TIMEOUT)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


@pytest.fixture
def unfinished(folders: list[Path], tmp_path: Path) -> Path:
    return cut(folders[0], tmp_path / "run", 0)


def complete(run: Path, whole: Path, rounds: int) -> None:
    """Replace the records of `run` with the first `rounds` records of `whole`."""
    lines = (whole / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:rounds]))


def test_requests_with_another_host_header_are_refused(unfinished: Path) -> None:
    with serving(unfinished) as server:
        assert server.server_address[0] == "127.0.0.1"
        port = server.server_port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert request(server, "/", Host=host)[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            for path in ("/", "/content"):
                status, body, _ = request(server, path, Host=host)
                assert status == 403
                assert b"round" not in body


def test_only_get_of_two_paths_is_answered(unfinished: Path) -> None:
    with serving(unfinished) as server:
        for path in ("/config.toml", "/../config.toml", "/content/", "/?x", "/x"):
            assert request(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert request(server, "/content", method)[0] == 501
        status, body, headers = request(server, "/")
        assert status == 200
        assert b"connect-src 'self'" in body
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_follows_a_run_from_before_its_first_round_to_its_end(
    unfinished: Path, folders: list[Path]
) -> None:
    with serving(unfinished) as server:
        first = json.loads(request(server, "/content")[1])
        assert first["status"] == "run: no round is complete yet"
        assert "accuracy-over-rounds" not in first["charts"]
        complete(unfinished, folders[0], 2)
        second = json.loads(request(server, "/content")[1])
        assert second["status"] == "run: round 2 of 3 is done"
        assert "accuracy-over-rounds" in second["charts"]
        complete(unfinished, folders[0], 3)
        shutil.copy(folders[0] / "summary.json", unfinished)
        _, body, headers = request(server, "/content")
        assert json.loads(body)["status"] == "run: finished after round 3"
        same = request(server, "/content", **{"If-None-Match": headers["ETag"]})
        assert same[:2] == (304, b"")


def test_a_page_is_made_again_only_when_the_run_has_changed(
    unfinished: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(runs: Sequence[NamedRun], measure: Measure) -> Page:
        made.append(runs)
        return run_page(runs, measure)

    monkeypatch.setattr(live, "run_page", counted)
    page = LivePage(unfinished)
    first = page.content()
    assert page.content() == first
    assert len(made) == 1
    complete(unfinished, folders[0], 1)
    assert page.content() != first
    assert len(made) == 2


def test_an_unreadable_run_is_reported_and_read_again_after_a_change(
    unfinished: Path, folders: list[Path]
) -> None:
    page = LivePage(unfinished)
    whole = (unfinished / "config.toml").read_bytes()
    (unfinished / "config.toml").write_bytes(b"?")
    assert "is not valid TOML" in json.loads(page.content()[0])["main"]
    (unfinished / "config.toml").write_bytes(whole)
    assert "no round is complete yet" in json.loads(page.content()[0])["main"]


def test_the_command_prints_its_address_and_ends_with_ctrl_c(unfinished: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgh", "watch", str(unfinished), "--no-browser"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        connection.request("GET", "/content")
        assert json.loads(connection.getresponse().read())["title"] == "run"
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_the_error_for_a_port_in_use_names_the_port_and_the_option(unfinished: Path) -> None:
    with (
        LiveServer(unfinished) as server,
        pytest.raises(RunError, match=rf"port {server.server_port} cannot be used .*--port"),
    ):
        LiveServer(unfinished, server.server_port)
