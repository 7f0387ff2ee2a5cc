"""Lies told over the class means that a real run has kept: which of them `defence.agreement` finds.

python -m benchmarks.defence RUN [--liars 0.3] [--agreement 0.2]
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedgh.core.defence import Defence, OutlierLog
from fedgh.core.rng import stream
from fedgh.core.types import Payload, Upload
from fedgh.runs.folder import RunFolder


def told(kind: str, client: int, classes: Tensor, means: Tensor, num_classes: int) -> Payload:
    if kind == "flip":
        classes = (classes + 1) % num_classes
    elif kind == "noise":
        means = noise(client, *means.shape)
    elif kind == "everything":
        classes = torch.arange(num_classes, dtype=torch.int32)
        means = noise(client, num_classes, means.shape[1])
    return {"classes": classes, "means": means}


def noise(client: int, number: int, width: int) -> Tensor:
    return torch.randn(number, width, generator=stream(0, "lie", client))


def left_out(round: Payload, kind: str, liars: int, agreement: float, num_classes: int) -> str:
    uploads = []
    for client in round["clients"].unique().tolist():
        own = round["clients"] == client
        lie = kind if client < liars else "none"
        payload = told(lie, client, round["classes"][own], round["means"][own], num_classes)
        uploads.append(Upload(client, 0, payload))
    dropped = OutlierLog()
    list(Defence(agreement=agreement).apply(uploads, dropped))
    lies = sum(len(u.payload["classes"]) for u in uploads if u.client_id < liars)
    truths = sum(len(u.payload["classes"]) for u in uploads if u.client_id >= liars)
    found = sum(len(classes) for client, classes in dropped.classes.items() if client < liars)
    wrong = sum(len(classes) for client, classes in dropped.classes.items() if client >= liars)
    return f"{found / max(1, lies):.0%} of lies, {wrong / max(1, truths):.0%} of truths"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--liars", type=float, default=0.3, help="share of the clients")
    parser.add_argument("--agreement", type=float, default=0.2)
    asked = parser.parse_args()
    run = RunFolder.open(asked.run)
    liars = round(asked.liars * len(run.clients()))
    num_classes = len(run.identity().classes)
    kinds = {"none": 0, "flip": liars, "noise": liars, "everything": liars}
    table = Table("round", *(f"{kind}, {liars} lie" for kind, liars in kinds.items()))
    for number, means in run.means().items():
        cells = [
            left_out(means, kind, n, asked.agreement, num_classes) for kind, n in kinds.items()
        ]
        table.add_row(str(number), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
