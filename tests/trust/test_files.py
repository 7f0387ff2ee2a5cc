"""Special files in a folder of a remote party: devices, pipes, links and very large files.

The tests enumerate all calls in the code that use files, all files of a run, and all commands. A
new one fails here until it is classified.
"""

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedgh
from fedgh.audit import audit, result
from fedgh.audit.cases import Effort
from fedgh.flower.current import CurrentFile
from fedgh.flower.session import Session
from fedgh.report.write import write_page
from fedgh.runs.folder import RunFolder
from fedgh.trained import confusion
from fedgh.trained.clients import TrainedFederation
from fedgh.training import loop
from fedgh.trust import OWN
from tests.support.tiny import quick
from tests.trust.commands import READERS, RUN_CODE, SMALL, RemoteFolder, make
from tests.trust.watch import RECORDER

SOURCE = Path(fedgh.__file__).parent

FILE_FUNCTIONS = {
    *("open", "read_text", "write_text", "write_bytes", "mkdir", "touch", "load_file", "safe_open"),
    *("save_file", "fromfile", "memmap", "loadtxt", "genfromtxt", "savez", "symlink_to"),
    *("copyfile", "copytree", "move", "rename", "hardlink_to", "mkstemp", "rmtree", "from_file"),
}
"""Names of functions and methods that open, create or move a file, of any class."""

PACKAGED = "of the package itself"
ALLOWED_CALLS = {
    ("cli/reading.py", "webbrowser.open"): "an address",
    ("cli/__init__.py", "os.open"): "/dev/null, for output after its reader has ended",
    ("cli/helpers.py", "folder.mkdir"): "creates a new folder, or fails if it exists",
    ("cli/models.py", "RunFolder.open"): "opens no file",
    ("config.py", "item.read_text"): PACKAGED,
    (
        "config.py",
        "(resources.files('fedgh') / 'experiments' / f'{name}.toml').read_text",
    ): PACKAGED,
    ("trained/newcomer.py", "RunFolder.open"): "opens no file",
    ("training/loop.py", "RunFolder.open"): "opens no file",
    ("trained/forget.py", "RunFolder.open"): "opens no file",
    ("flower/operate.py", "FederationFolder.open"): "opens no file",
    ("cli/flower_upkeep.py", "FederationFolder.open"): "opens no file",
    ("flower/folder.py", "(TEMPLATES / name).read_text"): PACKAGED,
    (
        "methods/new.py",
        "(resources.files('fedgh.methods') / 'templates' / f'{template}.txt').read_text",
    ): PACKAGED,
    ("flower/processes.py", "(process / 'stat').read_text"): "of the operating system",
    ("studies/study.py", "item.read_text"): PACKAGED,
    ("studies/study.py", "(resources.files('fedgh.studies') / 'budgets.toml').read_text"): PACKAGED,
    ("report/vega.py", "(resources.files('fedgh') / 'report' / 'assets' / name).read_text"): (
        PACKAGED
    ),
    ("runs/summary.py", "Path('/proc/cpuinfo').read_text"): "of the operating system",
    ("data/images.py", "Image.open"): "decodes bytes that fedgh.files has read",
    ("data/sources.py", "(resources.files('fedgh.data') / 'digits.npz').open"): PACKAGED,
    ("data/sources.py", "gzip.open"): "unpacks from a file that fedgh.files has opened",
    ("data/arrays.py", "archive.open"): "unpacks from a file that fedgh.files has opened",
}
"""Calls that are allowed outside files.py, with the reason."""


def file_calls() -> Iterator[tuple[str, str]]:
    """Yield the calls in the source that use files: source file and function."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name == "files.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                last = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if last in FILE_FUNCTIONS:
                    yield name, ast.unparse(node.func)


def test_files_are_opened_only_in_fedgh_files() -> None:
    assert set(file_calls()) == ALLOWED_CALLS.keys()


FILES = {
    r"config\.toml|data\.json|clients\.json|rounds\.jsonl|summary\.json": "of every run",
    r"checkpoint/server\.safetensors|checkpoint/clients-\d{6}\.round-\d{6}\.states": "states",
    r"means/\d{6}\.safetensors": "class means",
    r"asked\.json|flower\.json|current\.json": "of a federation between machines",
    r"confusion\.json|audit\.json": "measured afterwards",
    r"report\.html|export/client-\d+\.safetensors": "written for other programs, never read",
    r"\.lock": "locked, never read",
    r"tensorboard/events\.out\.tfevents\..*": "written for TensorBoard, never read",
}
"""Patterns of all files that a run folder may have, with their purpose."""


@pytest.fixture(scope="module")
def remote_folder(tmp_path_factory: pytest.TempPathFactory) -> RemoteFolder:
    """A folder with a run that has all files that a run folder may have."""
    created = make(tmp_path_factory.mktemp("elsewhere") / "remote_folder", "fedgh")
    run = RunFolder(created.run)
    confusion.measure(run, trust=OWN)
    run.count_requests([0, 1])
    little = Effort(sizes=(1,), reconstructions=2, candidates=4, levels=())
    result.write(run, audit.audit(run, 0, 0, lambda _: None, little, trust=OWN))
    client = TrainedFederation.load(run.path).clients[0]
    client.export(run.path / "export" / "client-0.safetensors", "safetensors")
    write_page([run.path])
    return created


def files_of(run: Path) -> list[str]:
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())


def test_every_file_of_a_run_is_classified(remote_folder: RemoteFolder, tmp_path: Path) -> None:
    loop.run(quick(*SMALL, "run.callbacks=tensorboard"), tmp_path / "run")
    on_flower = shutil.copytree(remote_folder.run, tmp_path / "on flower")
    Session("run-1", 1, 7, RunFolder(on_flower).run_id).write(on_flower)
    CurrentFile(on_flower, RunFolder(on_flower).run_id).close()
    found = files_of(on_flower) + files_of(tmp_path / "run")
    unclassified = [name for name in found if not any(re.fullmatch(kind, name) for kind in FILES)]
    assert unclassified == []
    for kind in FILES:  # and every pattern has a file
        assert any(re.fullmatch(kind, name) for name in found), kind


def link_to_a_device(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def link_to_a_file(path: Path, user_file: Path) -> None:
    path.symlink_to(user_file)


def folder(path: Path, _: Path) -> None:
    path.mkdir()


def flood(path: Path, _: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # a sparse file: it takes no space on the disk


TRAPS: list[Callable[[Path, Path], None]] = [
    *(link_to_a_device, pipe, link_to_a_file, folder, flood)
]
TRAPPED_FILES = [
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json"),
    *("confusion.json", "audit.json", "flower.json", "asked.json", ".lock", "report.html"),
    "current.json",
    *("checkpoint/server.safetensors", "checkpoint/clients-000001.round-000001.states"),
    *("means/000001.safetensors", "export/client-0.safetensors", "checkpoint", "means", "export"),
]


def test_every_file_of_a_run_is_replaced_by_a_trap(remote_folder: RemoteFolder) -> None:
    existing = {name for name in TRAPPED_FILES if (remote_folder.run / name).exists()} | {
        *("flower.json", "current.json")
    }
    first = re.compile(r"clients-\d{6}.round-\d{6}")
    names = {first.sub("clients-000001.round-000001", name) for name in files_of(remote_folder.run)}
    assert names <= existing
    assert existing == set(TRAPPED_FILES)


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """A file of the user outside the folder."""
    path = tmp_path / "user_file.txt"
    path.write_text("precious")
    return path


COMMANDS = READERS | RUN_CODE


def cases() -> Iterator[object]:
    """Yield every trap in every file for every command; most only with the mark `faults`."""
    for i, command in enumerate(COMMANDS):
        for j, name in enumerate(TRAPPED_FILES):
            for k, trap in enumerate(TRAPS):
                often = (i + j) % len(TRAPS) == k and (i + 2 * j) % 3 == 0
                marks = [] if often else [pytest.mark.faults]
                yield pytest.param(trap, name, command, marks=marks)


@pytest.mark.parametrize(("trap", "name", "command"), list(cases()))
def test_a_trap_is_neither_opened_nor_written_through(
    trap: Callable[[Path, Path], None],
    name: str,
    command: str,
    remote_folder: RemoteFolder,
    user_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = remote_folder.copy(tmp_path / "remote_folder")
    target = hostile.run / name
    if target.is_dir():
        if trap in (folder, flood):
            pytest.skip("it is a folder")
        shutil.rmtree(target)
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.unlink(missing_ok=True)
        trap(target, user_file)
    monkeypatch.chdir(tmp_path)
    opened = target if trap is not flood and name != ".lock" else None
    with RECORDER.recording(trap=opened):
        COMMANDS[command](hostile, monkeypatch)
    assert user_file.read_text() == "precious"
    if (tmp_path / "elsewhere").exists():
        assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "Traceback" not in capsys.readouterr().err


def test_a_written_file_replaces_a_link(
    remote_folder: RemoteFolder, user_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = remote_folder.copy(tmp_path / "remote_folder")
    for number in range(os.getpid() - 3, os.getpid() + 3):  # names of an earlier version
        (hostile.run / f"report.html.{number}.part").symlink_to(user_file)
    (hostile.run / "report.html").unlink()
    (hostile.run / "report.html").symlink_to(user_file)
    assert READERS["report"](hostile, monkeypatch) == 0
    assert user_file.read_text() == "precious"
    assert not (hostile.run / "report.html").is_symlink()
