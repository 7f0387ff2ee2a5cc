"""The live page: for this machine alone, up to date, and no work when nothing has changed."""

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

PATIENCE = 120  # seconds; a busy machine may need many for what takes one


@contextmanager
def serving(path: Path) -> Iterator[LiveServer]:
    with LiveServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def ask(
    server: LiveServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers


@pytest.fixture
def unfinished(folders: list[Path], tmp_path: Path) -> Path:
    return cut(folders[0], tmp_path / "run", 0)


def complete(run: Path, whole: Path, rounds: int) -> None:
    """Let a run go on to what `whole` was after so many rounds."""
    lines = (whole / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[:rounds]))


def test_it_answers_those_who_call_it_by_its_name(unfinished: Path) -> None:
    with serving(unfinished) as server:
        assert server.server_address[0] == "127.0.0.1"
        port = server.server_port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
            assert ask(server, "/", Host=host)[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
            for path in ("/", "/content"):
                status, body, _ = ask(server, path, Host=host)
                assert status == 403
                assert b"round" not in body


def test_it_has_two_paths_and_one_verb(unfinished: Path) -> None:
    with serving(unfinished) as server:
        for path in ("/config.toml", "/../config.toml", "/content/", "/?x", "/x"):
            assert ask(server, path)[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(server, "/content", method)[0] == 501
        status, body, headers = ask(server, "/")
        assert status == 200
        assert b"connect-src 'self'" in body
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_it_follows_a_run_from_before_its_first_round_to_its_end(
    unfinished: Path, folders: list[Path]
) -> None:
    with serving(unfinished) as server:
        first = json.loads(ask(server, "/content")[1])
        assert first["status"] == "run: no round is complete yet"
        assert "accuracy-over-rounds" not in first["charts"]
        complete(unfinished, folders[0], 2)
        second = json.loads(ask(server, "/content")[1])
        assert second["status"] == "run: round 2 of 3 is done"
        assert "accuracy-over-rounds" in second["charts"]
        complete(unfinished, folders[0], 3)
        shutil.copy(folders[0] / "summary.json", unfinished)
        _, body, headers = ask(server, "/content")
        assert json.loads(body)["status"] == "run: finished after round 3"
        same = ask(server, "/content", **{"If-None-Match": headers["ETag"]})
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


def test_what_cannot_be_read_is_said_and_looked_at_again(
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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/content")
        assert json.loads(connection.getresponse().read())["title"] == "run"
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_a_port_that_is_taken_is_named(unfinished: Path) -> None:
    with (
        LiveServer(unfinished) as server,
        pytest.raises(RunError, match=rf"port {server.server_port} cannot be used .*--port"),
    ):
        LiveServer(unfinished, server.server_port)
