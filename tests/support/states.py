"""The states of a run or of a client on Flower, as bytes that can be compared."""

from pathlib import Path

from fedgh.core import wire
from fedgh.runs.checkpoint import ClientFiles
from fedgh.runs.folder import RunFolder
from fedgh.runs.sealed import unpack


def states(run: RunFolder) -> dict[str, bytes]:
    """Return the tensors of every state of a run; a client's name has the round of its state."""
    return {
        "server.safetensors": tensors(run.checkpoint / "server.safetensors"),
        **client_states(run.checkpoint),
    }


def client_states(folder: Path) -> dict[str, bytes]:
    """Return the tensors of the newest state of every client in a folder."""
    segments = sorted(folder.glob("clients-*.states"))
    if not segments:
        return {}
    files = ClientFiles(folder, 2**62, str(owner_of(segments[-1])))
    return {name_of(files, client): _bytes(files, client) for client in sorted(files.clients)}


def name_of(files: ClientFiles, client: int) -> str:
    """Return a name for a client's newest state."""
    return f"client-{client:06}.round-{files.round(client):06}"


def _bytes(files: ClientFiles, client: int) -> bytes:
    state = files.load(client)
    assert state is not None
    return wire.to_bytes(state)


def owner_of(segment: Path) -> object:
    """Return the identity of the run that has written a segment."""
    content = segment.read_bytes()
    length = int.from_bytes(content[-8:], "little")
    return unpack(content[-8 - length : -8])[0]["run"]


def tensors(path: Path) -> bytes:
    """Return the tensors of a state file without its metadata."""
    return wire.to_bytes(unpack(path.read_bytes())[1])
