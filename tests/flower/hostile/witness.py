"""A `sitecustomize` module that logs file and network accesses of the clients' processes.

It is active in processes whose working directory is a client's folder. It appends one line to the
file $WITNESS for each of these accesses:

    reach ADDRESS   an address is looked up or connected to
    write PATH      a file is opened for writing
    read PATH       a file of $FORBIDDEN, a list of files and folders, is opened for reading
"""

import os
import sys
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch(event: str, details: tuple[Any, ...]) -> None:
    """Handle an audit event of Python: log it if it is one of the accesses listed above."""
    if event == "socket.connect":
        log("reach", details[1][0])
    elif event == "socket.getaddrinfo":
        log("reach", details[0])
    elif event == "open" and isinstance(details[0], str):
        path = Path(details[0]).absolute()
        if details[2] & WRITING:
            log("write", path)
        elif any(map(path.is_relative_to, forbidden)):
            log("read", path)


def log(access: str, target: object) -> None:
    os.write(log_file, f"{access} {target}\n".encode())


if Path.cwd().parent.name == "participants":  # the folder of client K is participants/K
    log_file = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    forbidden = os.environ["FORBIDDEN"].split(os.pathsep)
    sys.addaudithook(watch)
