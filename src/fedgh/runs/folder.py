"""The run folder: the format that resuming, reports and tests rely on.

config.toml     the complete configuration, enough to run the experiment again
data.json       identity of the run; name, size and classes of the data; fingerprint of data and
                settings
clients.json    the clients: network, classes, number of samples
rounds.jsonl    one record per round
asked.json      number of uploads requested from each client, where each one costs privacy
summary.json    the result of a finished run
means/          class means that the server received in a few rounds
checkpoint/     the states after the last committed round
report.html     all of this as a page
confusion.json  confusion matrices of the final models, measured for that page
export/         models for other programs, written by `fedgh export`
audit.json      what uploads reveal, written by `fedgh audit`
current.json    on Flower: the round in progress, for people and monitoring
tensorboard/    the metrics for TensorBoard, with run.callbacks; wandb/: for Weights & Biases
"""

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgh.core.records import (
    FORMAT_VERSION,
    ClientInfo,
    Identity,
    RequestCounts,
    Round,
    Summary,
    check_format,
    checked,
)
from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import (
    check_no_link,
    discard_parts,
    explaining,
    is_part,
    locked,
    make_folder,
    read_bytes,
    write_atomic,
)
from fedgh.runs.checkpoint import ClientFiles, ServerFile, discard_leftovers
from fedgh.runs.history import History, Mark, to_json
from fedgh.runs.sealed import pack, unpack

LOCKED = (
    *("config.toml", "data.json", "clients.json", "rounds.jsonl", "summary.json"),
    *("asked.json", "flower.json", "current.json"),
)
"""Files that only the process with the lock writes; reports and audits take no lock."""

MAX_JSON = 2**27
"""Maximum size of a JSON file in bytes: enough for the clients of a very large federation."""

MAX_PARTS = 2**22
"""Maximum number of objects and lists in a JSON file: an empty one takes 2 bytes, in memory 70."""

MAX_MEANS = 2**30
"""Maximum size of the stored class means of all rounds in bytes."""


class RunFolder:
    """A run on disk. A crash at any time leaves the last committed round intact.

    The process that writes holds the lock of the folder, from before the first byte of a new run.
    The files that `resume` relies on contain the identity of the run, a random number drawn when
    the run is created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.checkpoint = path / "checkpoint"
        self._server = ServerFile(self.checkpoint)
        self._history = History(path / "rounds.jsonl")
        self._means = path / "means"

    @classmethod
    @contextmanager
    def create(
        cls, path: Path, config: str, identity: Identity, clients: list[ClientInfo], state: Payload
    ) -> Iterator["RunFolder"]:
        """Create a run before its first round, and hold its lock.

        Raise RunError if the folder is not empty or cannot be written.
        """
        run = cls(path)
        with ExitStack() as stack:
            try:
                _check_new(
                    path
                )  # before locking, which would add a file to a folder of other files
                make_folder(path)
                stack.enter_context(run._lock())
                _check_new(path)
                make_folder(run.checkpoint)
                run_id = secrets.token_hex(16)
                identity = identity.model_copy(update={"run": run_id, "versions": versions()})
                write_atomic(path / "data.json", to_json(identity.model_dump()))
                clients_json = to_json(
                    [client.model_dump(exclude_unset=True) for client in clients]
                )
                if len(clients_json) > MAX_JSON:
                    raise RunError(f"{len(clients):,} clients are too many for one run folder")
                write_atomic(path / "clients.json", clients_json)
                run._server.commit(Mark(0, run._history.digest()), state, run_id)
                write_atomic(
                    run.config, config.encode()
                )  # last, because it makes this a run folder
            except OSError as error:
                raise RunError(
                    f"cannot write {error.filename}: {error.strerror}. The run has not begun: free "
                    "disk space or check permissions, and start it again"
                ) from None
            yield run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Return an existing run; raise RunError if there is none, or no checkpoint."""
        run = cls(path)
        run.check_exists()
        if not run.checkpoint.is_dir():
            raise RunError(
                f"{path} has no checkpoint/ to resume from; to start again, choose another folder "
                "or delete this one"
            )
        return run

    def check_exists(self) -> None:
        """Raise RunError if this is not a run folder or has an unknown format version."""
        if not self.config.is_file():
            raise RunError(f"{self.path} is not a run folder (it has no config.toml)")
        self.identity()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, so that no other process writes; a killed process releases it."""
        with ExitStack() as stack:
            with explaining():
                stack.enter_context(self._lock())
            yield

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".lock"))
            except BlockingIOError:
                raise RunError(f"{self.path} is in use by another process") from None
            for folder in (self.checkpoint, self._means):
                check_no_link(folder)
            yield

    def identity(self) -> Identity:
        """Return the identity of the run and of its data."""
        content = self._read_json("data.json")
        check_format(content, self.path / "data.json")
        return checked(Identity, content, self.path / "data.json")

    @explaining()
    def update_versions(self) -> dict[str, str]:
        """Write the installed package versions to data.json; return those of the last start."""
        identity = self.identity()
        changes = {"versions": versions(), "format_version": FORMAT_VERSION}
        current = identity.model_copy(update=changes)
        if current != identity:
            write_atomic(self.path / "data.json", to_json(current.model_dump()))
        return identity.versions

    @cached_property
    def run_id(self) -> str:
        """The identity of the run, which its states and request counts contain."""
        return self.identity().run

    def clients(self) -> list[ClientInfo]:
        """Return the clients: network, classes and number of samples of each."""
        content = self._read_json("clients.json")
        return checked(list[ClientInfo], content, self.path / "clients.json")

    def records(self) -> list[Round]:
        """Return the rounds so far; committed ones are verified by their digest."""
        mark = self._server.mark(self.run_id) if self._server.path.exists() else Mark(0, None)
        # The mark was read first: records are only appended, so its rounds are in the file.
        return self._history.records(mark)

    @explaining()
    def count_requests(self, clients: Iterable[int]) -> None:
        """Count one more request to each of these clients, before an answer may cost privacy."""
        counts = Counter(self.request_counts())
        counts.update(clients)
        content = RequestCounts(run=self.run_id, asked=dict(counts))
        write_atomic(self.path / "asked.json", content.model_dump_json().encode() + b"\n")

    def request_counts(self) -> dict[int, int]:
        """Return the number of uploads requested from each client, including those of lost rounds.

        Empty if requests are not counted. Raise RunError if the counts are of another run.
        """
        if not (self.path / "asked.json").exists():
            return {}
        counts = checked(RequestCounts, self._read_json("asked.json"), self.path / "asked.json")
        if counts.run != self.run_id:
            raise RunError(
                f"{self.path / 'asked.json'} belongs to another run; put it back from a copy"
            )
        return counts.asked

    @explaining()
    def append(self, record: Round) -> None:
        """Append the record of a round; a resume drops it unless the round is committed."""
        self._history.append(record)

    @explaining()
    def commit(self, round: int, state: Payload) -> None:
        """Commit `round`, whose record was appended last: a resume starts from it."""
        self._server.commit(Mark(round, self._history.digest()), state, self.run_id)

    def committed(self) -> tuple[int, Payload]:
        """Return the last committed round and the server's state after it."""
        mark, state = self._server.load(self.run_id)
        self._history.records(mark)
        return mark.round, state

    @explaining()
    def rewind(self) -> tuple[int, Payload]:
        """Delete all data after the last committed round; return its number and server state."""
        round, state = self.committed()
        discard_leftovers(self.checkpoint, round, self.run_id)
        discard_parts(self.path, LOCKED)
        self._history.cut(round)
        for later, file in self._mean_files().items():
            if later > round:
                file.unlink()
        if self._means.is_dir():
            discard_parts(self._means)
        return round, state

    def client_files(self, round: int) -> ClientFiles:
        """Return the files with the clients' states after `round`."""
        return ClientFiles(self.checkpoint, round, self.run_id)

    @explaining()
    def discard_leftovers(self) -> None:
        """Delete client states that the last committed round does not need."""
        discard_leftovers(self.checkpoint, self.committed()[0], self.run_id)

    @explaining()
    def keep_means(self, round: int, means: Payload) -> None:
        """Store the class means of a round."""
        make_folder(self._means)
        content = pack(means, round=round, run=self.run_id)
        write_atomic(self._means / f"{round:06}.safetensors", content)

    def means(self) -> dict[int, Payload]:
        """Return the stored class means by round."""
        files = self._mean_files()
        if sum(file.lstat().st_size for file in files.values()) > MAX_MEANS:
            raise RunError(
                f"{self._means} has more than {MAX_MEANS:,} bytes, which is too much to read"
            )
        return {round: _read_means(round, file, self.run_id) for round, file in files.items()}

    def _mean_files(self) -> dict[int, Path]:
        if self._means.is_symlink():
            raise RunError(f"{self._means} is a symbolic link, which is not followed")
        files = sorted(self._means.glob("*.safetensors"))
        return {int(file.stem): file for file in files if file.stem.isdecimal()}

    @explaining()
    def write_summary(self, summary: Summary) -> None:
        """Write the result, which marks the run as finished."""
        content = json.dumps(summary.model_dump(exclude_unset=True), indent=2).encode() + b"\n"
        write_atomic(self.path / "summary.json", content)

    @property
    def finished(self) -> bool:
        """True if the run is finished: its folder has a summary.json."""
        return (self.path / "summary.json").exists()

    def summary(self) -> Summary:
        """Return the result; raise RunError if the run is not finished."""
        if not self.finished:
            raise RunError(f"{self.path} has not finished; resume it: fedgh resume {self.path}")
        return checked(Summary, self._read_json("summary.json"), self.path / "summary.json")

    def _read_json(self, name: str) -> Any:
        try:
            return parse_json(read_bytes(self.path / name, MAX_JSON))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}); put it back from a copy"
            ) from None


def versions() -> dict[str, str]:
    """Return the versions of the packages on which the exact results of a run depend."""
    return {package: version(package) for package in ("fedgh", "torch", "numpy")}


def parse_json(content: bytes) -> Any:
    """Return the value of JSON; raise ValueError if it is invalid or has too many parts."""
    if content.count(b"{") + content.count(b"[") > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS:,} objects and lists")
    return json.loads(content)


def _check_new(path: Path) -> None:
    """Raise RunError if a folder has other files than those of an interrupted `create`."""
    created_first = (".lock", "checkpoint", "clients.json", "data.json")
    if path.exists() and not (
        path.is_dir()
        and all(item.name in created_first or is_part(item.name) for item in path.iterdir())
    ):
        raise RunError(
            f"{path} exists and is not empty; choose another --out, "
            f"or resume it: fedgh resume {path}"
        )


def _read_means(round: int, file: Path, run: str) -> Payload:
    try:
        metadata, means = unpack(read_bytes(file, MAX_MEANS))
    except (OSError, ValueError) as error:
        raise RunError(
            f"{file} cannot be read ({error}); put it back from a copy, or delete it"
        ) from None
    if metadata != {"round": round, "run": run}:
        raise RunError(f"{file} holds the class means of another round or run; delete it")
    return means
