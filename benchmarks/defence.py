"""Share of poisoned and of honest class means that `defence.agreement` drops.

The class means are those stored in a run folder; some clients' are poisoned here.

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


def poisoned(attack: str, client: int, classes: Tensor, means: Tensor, num_classes: int) -> Payload:
    if attack == "flip":
        classes = (classes + 1) % num_classes
    elif attack == "noise":
        means = noise(client, *means.shape)
    elif attack == "everything":
        classes = torch.arange(num_classes, dtype=torch.int32)
        means = noise(client, num_classes, means.shape[1])
    return {"classes": classes, "means": means}


def noise(client: int, number: int, width: int) -> Tensor:
    return torch.randn(number, width, generator=stream(0, "lie", client))


def dropped_shares(
    round: Payload, attack: str, malicious: int, agreement: float, num_classes: int
) -> str:
    """Return the dropped shares as text; the first `malicious` clients are malicious."""
    uploads = []
    for client in round["clients"].unique().tolist():
        own = round["clients"] == client
        own_attack = attack if client < malicious else "none"
        classes, means = round["classes"][own], round["means"][own]
        payload = poisoned(own_attack, client, classes, means, num_classes)
        uploads.append(Upload(client, 0, payload))
    log = OutlierLog()
    list(Defence(agreement=agreement).apply(uploads, log))
    sent, dropped = [0, 0], [0, 0]  # honest, poisoned
    for upload in uploads:
        sent[upload.client_id < malicious] += len(upload.payload["classes"])
    for client, labels in log.classes.items():
        dropped[client < malicious] += len(labels)
    honest, false = (d / max(1, s) for d, s in zip(dropped, sent, strict=True))
    return f"{false:.0%} of poisoned, {honest:.0%} of honest means"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--liars", type=float, default=0.3, help="share of malicious clients")
    parser.add_argument("--agreement", type=float, default=0.2, help="value of defence.agreement")
    options = parser.parse_args()
    run = RunFolder.open(options.run)
    malicious = round(options.liars * len(run.clients()))
    num_classes = len(run.identity().classes)
    attacks = {"none": 0, "flip": malicious, "noise": malicious, "everything": malicious}
    table = Table("round", *(f"{attack}, {n} malicious clients" for attack, n in attacks.items()))
    for number, means in run.means().items():
        cells = [
            dropped_shares(means, attack, n, options.agreement, num_classes)
            for attack, n in attacks.items()
        ]
        table.add_row(str(number), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
