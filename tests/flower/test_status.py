"""Status and metrics of a federation: during a round, afterwards, and for people and programs."""

import http.client
import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedgh.core.types import Job, Reply
from fedgh.errors import RunError
from fedgh.flower import exporter, status
from fedgh.flower.current import CurrentFile, read_current
from fedgh.flower.display import MIN_PAUSE, RoundLines, UpBars, UpLog, age, clients_table
from fedgh.flower.exporter import MetricsServer, exposition, serving
from fedgh.flower.folder import FederationFolder
from fedgh.flower.session import Session
from fedgh.flower.status import federation_status, round_status
from fedgh.runs.folder import RunFolder
from fedgh.training import loop
from tests.flower.real import two
from tests.support.commands import inside
from tests.support.runs import interrupted
from tests.support.tiny import quick

REASON = 'evil"} 9\n# fake'


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[FederationFolder, Path]:
    """A federation with a run of three rounds, of which two are completed."""
    path = tmp_path_factory.mktemp("status") / "f"
    experiment = two()
    folder = FederationFolder.create(path, experiment.config)
    interrupted(experiment, path / "run", 2)
    Session("run-0", 1, 7, RunFolder(path / "run").run_id).write(path / "run")
    return folder, path / "run"


@contextmanager
def server_at_work(run: Path) -> Iterator[CurrentFile]:
    """Write current.json as a server does in round 3: client 0 has answered, 1 is awaited."""
    file = CurrentFile(run, RunFolder(run).run_id)
    try:
        file.connected({0, 1})
        file.begin([Job(k, 3, b"", evaluate=True) for k in (0, 1)], 90.0, tries=2)
        file.sent(0)
        file.sent(1)
        file.ended(Reply(0, 3, up=b""), "answered")
        until(run, 0, "answered")
        yield file
    finally:
        file.close()
        (run / "current.json").unlink()


def until(run: Path, client: int, state: str) -> None:
    """Wait until current.json has this state of a client."""
    for _ in range(1_000):
        found = read_current(run, RunFolder(run).run_id)
        if found is not None and client in found.clients and found.clients[client].state == state:
            return
        time.sleep(0.01)
    raise AssertionError(found)


def values(text: str) -> dict[str, float]:
    """Return the samples of an exposition, which must be in Prometheus' text format."""
    names: dict[str, str] = {}
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            kind, name, rest = re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line).groups()  # type: ignore[union-attr]
            if kind == "TYPE":
                assert rest in ("gauge", "counter")
                assert rest == "gauge" or name.endswith("_total")
                names[name] = rest
            continue
        sample = re.fullmatch(r'(\w+)(\{client="\d+"\})? (-?[0-9.e+-]+)', line)
        assert sample, line
        assert sample[1] in names, "its type comes before its samples"
        assert sample[1] + (sample[2] or "") not in found
        found[sample[1] + (sample[2] or "")] = float(sample[3])
    return found


def test_the_status_during_a_round(interrupted_run: tuple[FederationFolder, Path]) -> None:
    folder, run = interrupted_run
    with server_at_work(run) as file:
        found = federation_status(folder, run)
        assert (found.state, found.rounds, found.rounds_completed) == ("running", 3, 2)
        assert found.accuracy == RunFolder(run).records()[-1].accuracy
        assert found.bytes == RunFolder(run).records()[-1].bytes_total
        assert found.uploads == 4
        current = found.current
        assert current is not None
        assert (current.round, current.tries, current.deadline) == (3, 2, 90.0)
        assert (current.asked, current.answered, current.failed, current.awaited) == (2, 1, 0, [1])
        assert [one.connected for one in found.clients] == [True, True]
        assert [one.state for one in found.clients] == ["answered", "awaited"]
        assert [one.last_round for one in found.clients] == [3, None]
        file.ended(Reply(1, 3, error="ValueError"), "failed")
        file.connected({0})
        until(run, 1, "failed")
        found = federation_status(folder, run)
        assert found.clients[1].connected is False
        assert found.clients[1].reason == "ValueError"
        assert found.current is not None
        assert found.current.failed == 1


def test_no_round_is_in_progress_after_its_record(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    folder, run = interrupted_run
    with server_at_work(run) as file:
        file.begin([Job(1, 2, b"", evaluate=True)], 90.0, tries=1)
        file.ended(Reply(1, 2, up=b""), "answered")
        until(run, 1, "answered")
        found = federation_status(folder, run)
    assert (found.state, found.rounds_completed, found.current) == ("running", 2, None)


def test_the_status_of_a_server_that_was_killed(
    interrupted_run: tuple[FederationFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = interrupted_run
    with server_at_work(run):
        monkeypatch.setattr(status, "SILENCE", 0.0)
        found = federation_status(folder, run)
        assert found.state == "stopped"
        assert found.silence is not None
        assert found.current is None
        assert [one.connected for one in found.clients] == [None, None]
        assert found.clients[0].last_round == 3


def test_the_status_command_for_people_and_for_programs(
    interrupted_run: tuple[FederationFolder, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, run = interrupted_run
    with server_at_work(run):
        assert inside(monkeypatch, "flower", "status", str(folder.path)) == 0
        text = capsys.readouterr().out
        assert "round 2 of 3" in text
        assert "round 3 (try 2 of 3): 1 of 2 clients have answered" in text
        assert "awaited: 1" in text
        assert re.search(r"0 +yes +3 +answered +0 s +\d+ s ago, round 3", text)
        assert inside(monkeypatch, "flower", "status", str(folder.path), "--format", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["state"] == "running"
        assert found["current"]["awaited"] == [1]
        assert found["clients"][0]["last_answer"].endswith("Z")


def test_the_status_before_the_first_start(tmp_path: Path) -> None:
    folder = FederationFolder.create(tmp_path / "f", two().config)
    found = federation_status(folder, tmp_path / "f" / "run")
    assert (found.state, found.rounds, len(found.clients)) == ("not started", None, 2)
    assert values(exposition(found))["fedgh_clients"] == 2


def test_the_status_without_the_certificate_of_the_authority(tmp_path: Path) -> None:
    folder = FederationFolder.create(tmp_path / "f", two().config)
    (folder.server / "ca.crt").unlink()
    found = federation_status(folder, tmp_path / "f" / "run", ask_superlink=True)
    assert (found.superlink, [one.connected for one in found.clients]) == (None, [None, None])


def test_the_metrics_are_valid_and_have_the_numbers_of_the_run(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    folder, run = interrupted_run
    with server_at_work(run):
        found = values(exposition(federation_status(folder, run)))
    last = RunFolder(run).records()[-1]
    assert found["fedgh_running"] == 1
    assert found["fedgh_rounds"] == 3
    assert found["fedgh_rounds_completed"] == 2
    assert found["fedgh_accuracy"] == last.accuracy
    assert found["fedgh_bytes_total"] == last.bytes_total
    assert found["fedgh_uploads_total"] == 4
    assert found["fedgh_failures_total"] == found["fedgh_rejected_total"] == 0
    assert found["fedgh_clients_connected"] == 2
    assert found["fedgh_round"] == 3
    assert 0 <= found["fedgh_round_age_seconds"] < 60
    assert (found["fedgh_round_answered"], found["fedgh_round_awaited"]) == (1, 1)
    assert found['fedgh_client_connected{client="1"}'] == 1
    assert 'fedgh_client_last_answer_age_seconds{client="0"}' in found
    assert 'fedgh_client_last_answer_age_seconds{client="1"}' not in found


def test_the_parser_of_prometheus_reads_the_metrics(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    folder, run = interrupted_run
    with server_at_work(run):
        text = exposition(federation_status(folder, run))
    families = list(parser.text_string_to_metric_families(text))
    samples = {
        sample.name + (f'{{client="{sample.labels["client"]}"}}' if sample.labels else ""): float(
            sample.value
        )
        for family in families
        for sample in family.samples
    }
    assert samples == values(text)


def test_no_text_of_a_client_is_in_the_metrics(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    folder, run = interrupted_run
    found = federation_status(folder, run)
    clients = [replace(one, reason=REASON, state=REASON) for one in found.clients]
    assert "evil" not in exposition(replace(found, clients=clients, error=REASON))


def get(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_the_endpoint_serves_metrics_to_this_machine_only(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    with serving(*interrupted_run, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        code, body = get(server)
        assert (code, values(body)["fedgh_rounds_completed"]) == (200, 2)
        assert get(server, "/")[0] == 404
        assert get(server, Host="evil.example")[0] == 403
        with pytest.raises(RunError, match="cannot be used"):
            MetricsServer(*interrupted_run, server.server_port)


def test_many_requests_read_the_run_once(
    interrupted_run: tuple[FederationFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "MAX_AGE", 60.0)
    with serving(*interrupted_run, 0) as server:
        first = get(server)[1]
        assert all(get(server)[1] == first for _ in range(5))


def test_a_slow_connection_is_closed(
    interrupted_run: tuple[FederationFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "MAX_SECONDS", 0.3)
    with serving(*interrupted_run, 0) as server, socket.socket() as slow:
        slow.connect(("127.0.0.1", server.server_port))
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(server)[0] == 200
        slow.settimeout(60)
        assert slow.recv(1) == b"", "the server has closed it"


def test_a_damaged_run_makes_the_endpoint_fail_and_not_end(tmp_path: Path) -> None:
    folder = FederationFolder.create(tmp_path / "f", two().config)
    run = tmp_path / "f" / "run"
    run.mkdir()
    (run / "config.toml").write_text("")
    with serving(folder, run, 0) as server:
        code, body = get(server)
        assert code == 503
        assert "data.json" in body


def test_lines_about_a_round_are_rare_and_new(
    interrupted_run: tuple[FederationFolder, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = interrupted_run
    now = [100.0]
    monkeypatch.setattr("fedgh.flower.display.time.monotonic", lambda: now[0])
    with server_at_work(run):
        current = read_current(run, RunFolder(run).run_id)
        assert current is not None
        found = round_status(current)
        lines = RoundLines()
        assert "1 of 2 clients have answered" in (lines.next(found) or "")
        assert lines.next(replace(found, tries=3)) is None, "too early"
        now[0] += MIN_PAUSE
        assert lines.next(found) is None, "nothing new"
        assert "try 3 of 3" in (lines.next(replace(found, tries=3)) or "")


def test_the_progress_in_a_terminal_shows_who_is_awaited(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    _, run = interrupted_run
    console = Console(force_terminal=True, width=120, record=True, legacy_windows=False)
    with server_at_work(run), UpBars(console) as bars:
        bars.started(two(), RunFolder(run), RunFolder(run).records())
        current = read_current(run, RunFolder(run).run_id)
        assert current is not None
        bars.watch(current)
        bars._bar.refresh()
        shown = Console(width=120, record=True)
        shown.print(*bars._bar.get_renderables())
    text = shown.export_text()
    assert "1 of 2 clients have answered" in text
    assert re.search(r"1 +yes +3 +awaited", text)
    with UpLog() as log:
        log.watch(current)


def test_awaited_clients_come_first_if_there_are_too_many(
    interrupted_run: tuple[FederationFolder, Path],
) -> None:
    found = federation_status(*interrupted_run)
    many = [
        replace(found.clients[0], client=k, state="awaited" if k == 30 else "answered")
        for k in range(40)
    ]
    console = Console(width=100, record=True)
    console.print(clients_table(many, 3))
    rows = console.export_text().splitlines()
    assert rows[1].split()[0] == "30"
    assert "and 37 more" in rows[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.9, "12 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min")]
)
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_a_reason_that_is_the_state_is_not_repeated() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    gone = status.ClientStatus(0, False, 4, "not connected", None, "not connected", 3, None, None)
    console.print(clients_table([gone, replace(gone, state="failed", reason="full")]))
    text = console.export_text()
    assert text.count("not connected") == 1
    assert "failed: full" in text


def test_the_end_of_a_federation_with_logs_in_json(
    tmp_path: Path,
) -> None:
    run = loop.run(quick("federation.rounds=1"), tmp_path / "run")
    folder = FederationFolder.create(tmp_path / "f", two().config)
    up = ["flower", "up", str(folder.path), "--log-format", "json"]
    program = (
        "import sys; from pathlib import Path; from fedgh import cli; from fedgh.flower import "
        "operate; from fedgh.runs.folder import RunFolder\n"
        f"operate.up = lambda *_: RunFolder(Path({str(run.path)!r}))\n"
        f"sys.argv = ['fedgh', *{up!r}]\n"
        "cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    lines = [json.loads(line)["message"] for line in done.stdout.splitlines()]
    assert lines[-1] == f"report     {run.path / 'report.html'}"


def test_no_rehearsal_beside_a_superlink_that_the_scripts_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FederationFolder.create(tmp_path / "f", two().config)
    monkeypatch.setenv("FEDGH_PORT", "9999")
    monkeypatch.setattr(status, "connected_keys", lambda *_: set())
    assert inside(monkeypatch, "flower", "up", str(folder.path)) == 1
    assert "runs already, at 127.0.0.1:9999; train with" in capsys.readouterr().err
    assert not folder.processes.exists()
