"""Communication per client and round as the FedGH paper counts it: the rows of its table.

For FedGH it counts labels, means and the header without bias; for FD and FedProto means without
labels; for LG-FedAvg the header with bias, in both directions.
"""

from fedgh.core.types import Task


def paper_bytes(method: str, task: Task, local_classes: int) -> int | None:
    """Return the bytes of a client with `local_classes` classes; None if the table has no such row.

    It has none for many methods, and none for masked uploads.
    """
    width, classes, held = task.rep_dim, task.num_classes, local_classes
    numbers = {
        "standalone": 0,
        "lg_fedavg": 2 * (width + 1) * classes,
        "fd": 2 * held * classes,
        "fedproto": 2 * held * width,
        "fedgh": held * (width + 1) + width * classes,
    }
    return 4 * numbers[method] if method in numbers and not task.secure else None
