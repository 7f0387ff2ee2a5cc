"""Memory of a process and its descendants."""

import subprocess
import time
from pathlib import Path


def peak_memory(process: subprocess.Popen[str], every: float) -> int:
    """Wait until a process ends; return the peak memory of it and its descendants in bytes."""
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_set, tree(process.pid))))
        time.sleep(every)
    return peak


def tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:  # the list grows during the loop
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pids += map(int, children.read_text().split())
            except OSError:  # the process has ended
                continue
    return pids


def proportional_set(pid: int) -> int:
    """Return the memory of a process in bytes; shared memory is divided between its users."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
