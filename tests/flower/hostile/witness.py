"""What the processes of participants do that only their machine can see.

It is copied to where Python looks for `sitecustomize`. In the folder of a participant it writes
down in the file $WITNESS each address that is looked up or connected to, each file that is opened
to be written, and those among the $FORBIDDEN that are opened to be read.
"""

import os
import sys
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(event: str, details: tuple[Any, ...]) -> None:
    """Note down what matters of what Python is about to do."""
    if event == "socket.connect":
        note("reach", details[1][0])
    elif event == "socket.getaddrinfo":
        note("reach", details[0])
    elif event == "open" and isinstance(details[0], str):
        path = Path(details[0]).absolute()
        if details[2] & WRITING:
            note("write", path)
        elif any(map(path.is_relative_to, forbidden)):
            note("read", path)


def note(what: str, where: object) -> None:
    os.write(seen, f"{what} {where}\n".encode())


if Path.cwd().parent.name == "participants":
    seen = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    forbidden = os.environ["FORBIDDEN"].split(os.pathsep)
    sys.addaudithook(watch)
