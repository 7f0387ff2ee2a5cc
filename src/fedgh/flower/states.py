"""The states that a client keeps on its own machine, for use outside the federation."""

import re
from pathlib import Path

from fedgh.core.types import Payload
from fedgh.errors import RunError
from fedgh.files import read_bytes
from fedgh.runs.checkpoint import ClientFiles

MAX_NAME = 2**16
"""Maximum size of name.txt in bytes."""


def last_state(folder: Path | str) -> Payload:
    """Return the newest state of a client: its network's tensors have names with `model.`.

    `folder` is the folder of a run and client, `states/experiments/HASH/client-K`. If the last
    answer of the client came too late, the server has not counted this state.
    """
    folder = Path(folder)
    client = re.fullmatch(r"client-(\d+)", folder.name)
    state = None
    if client is not None and (folder / "name.txt").exists():
        experiment = read_bytes(folder / "name.txt", MAX_NAME).decode().rstrip("\n")
        state = ClientFiles(folder, 2**62, experiment).load(int(client[1]))
    if state is None:
        raise RunError(f"{folder} has no state of a client; give states/experiments/HASH/client-K")
    return state
