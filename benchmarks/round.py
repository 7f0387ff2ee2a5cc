"""Seconds of a FedGH round, by phase: CIFAR-shaped random images, N = 10, CNN-1..5, E = 1.

python benchmarks/round.py [batch size]
"""

import sys
import tempfile
from pathlib import Path

import torch

from fedgh import Source, load, prepare, run


def main(batch_size: int) -> None:
    """Two rounds; the first pays for starting the workers, the second is printed."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
    y = torch.arange(60_000) % 10
    source = Source("random", x, y, tuple("0123456789"))
    settings = ["federation.rounds=2", "local.epochs=1", f"local.batch_size={batch_size}"]
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(load("cifar10-hetero", settings), source=source)
        record = run(experiment, Path(folder) / "run").records()[-1]
    print(f"48,000 training images, batch {batch_size}; all but the last two summed over clients")
    for phase, seconds in record["seconds"].items():
        print(f"{phase:>10} {seconds:8.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
