"""Bytes up and down per client and round as the FedGH paper reckons them: rows of its table.

Labels and means count for FedGH, and its header without the bias; means without labels for FD and
FedProto; the header with its bias, both ways, for LG-FedAvg.
"""

from fedgh.core.types import Task


def paper_bytes(method: str, task: Task, local_classes: int) -> int | None:
    """Return the bytes for a client with so many classes; None for a method that has no row."""
    width, classes, held = task.rep_dim, task.num_classes, local_classes
    numbers = {
        "standalone": 0,
        "lg_fedavg": 2 * (width + 1) * classes,
        "fd": 2 * held * classes,
        "fedproto": 2 * held * width,
        "fedgh": held * (width + 1) + width * classes,
    }
    return 4 * numbers[method] if method in numbers else None
