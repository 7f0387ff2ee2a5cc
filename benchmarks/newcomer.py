"""The benefit of the global header to a newcomer, measured on digits with eleven clients.

Samples are assigned to eleven clients with two digits each, as in the demo. One of them does not
take part while the others train, and joins afterwards: with their global header of FedGH, with that
of FedGH+, without a header, and with an untrained header (server_lr = 0). The untrained header
separates two effects: that the newcomer starts every round from a fixed header, and what the global
header has learned.

python -m benchmarks.newcomer [--newcomers 6] [--seeds 0,1,2]
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch
from rich.progress import track

from fedgh import ClientSpec, Federation, Source, TrainedFederation
from fedgh.core.method import Method
from fedgh.core.rng import isolated
from fedgh.data.partition import by_classes
from fedgh.data.sources import DataLocation, digits
from fedgh.files import write_atomic
from fedgh.methods.fedgh import FedGH
from fedgh.methods.fedgh_plus import FedGHPlus
from fedgh.models import extractor
from fedgh.report.charts import AnyChart, wide
from fedgh.report.figures import save
from fedgh.studies.significance import paired_test
from fedgh.trained.newcomer import join

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CLIENTS, ROUNDS, EPOCHS = 11, 10, 20
LR = (
    0.02  # twice that of the demo, whose rounds have two epochs; 0.01 trained the others too little
)
EXTRACTORS, REP_DIM = ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5"), 500
ARMS = ("with_header", "untrained_header", "without_header", "fedgh_plus")
ARM_NAMES = ("header of FedGH", "untrained header", "no header", "FedGH+")
COMPARED = (
    ("with_header", "untrained_header"),
    ("with_header", "without_header"),
    ("fedgh_plus", "without_header"),
)
REPORTED_EPOCHS = (1, 5, 10, 20)


def all_clients(source: Source, seed: int) -> list[ClientSpec]:
    partition = by_classes(source.y.numpy(), source.num_classes, CLIENTS, 2, seed)
    clients = []
    for client, part in enumerate(partition):
        with isolated(seed, "network", client):
            network = extractor(EXTRACTORS[client % len(EXTRACTORS)])(source.shape, REP_DIM)
        index = torch.from_numpy(part)
        data = Source(source.name, source.x[index], source.y[index], source.class_names)
        clients.append(ClientSpec(network, data))
    return clients


def train(
    others: list[ClientSpec], classes: tuple[str, ...], seed: int, method: Method, rounds: int
) -> TrainedFederation:
    """Train the other clients."""
    federation = Federation(
        others, method, classes=classes, rep_dim=REP_DIM, batch_size=16, lr=LR, seed=seed
    )
    return federation.run(rounds, progress=False)


def case(source: Source, seed: int, newcomer: int) -> tuple[dict[str, Any], TrainedFederation]:
    clients = all_clients(source, seed)
    others = clients[:newcomer] + clients[newcomer + 1 :]
    trained = train(others, source.class_names, seed, FedGH(), ROUNDS)
    untrained = train(others, source.class_names, seed, FedGH(server_lr=0.0), 1)
    plus = train(others, source.class_names, seed, FedGHPlus(), ROUNDS)
    result, control, fused = (
        join(federation.folder, clients[newcomer], EPOCHS)
        for federation in (trained, untrained, plus)
    )
    alone = result.without_header
    assert alone == control.without_header == fused.without_header, "training alone is the same"
    return {
        "seed": seed,
        "newcomer": newcomer,
        "network": EXTRACTORS[newcomer % len(EXTRACTORS)],
        "classes": result.client.classes,
        "test_samples": len(result.client.loaded.client.data.test),
        "others": result.others,
        "with_header": result.with_header,
        "untrained_header": control.with_header,
        "without_header": alone,
        "fedgh_plus": fused.with_header,
    }, trained


def epochs_needed(curve: list[float], goal: float) -> int | None:
    return next((k for k, score in enumerate(curve) if score >= goal), None)


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the cases, and paired tests; `others` are the clients of FedGH."""
    needed = {arm: [epochs_needed(c[arm], c["others"]) for c in cases] for arm in ARMS}
    counted = {  # a newcomer that never reaches the others counts with one epoch more than tried
        arm: np.array([EPOCHS + 1 if n is None else n for n in needed[arm]]) for arm in ARMS
    }
    curves = {arm: np.array([c[arm] for c in cases]) for arm in ARMS}

    def compared(name: str, table: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        return {
            **{arm: float(table[arm].mean()) for arm in ARMS},
            **{
                f"p_{arm}_{other}": paired_test((table[arm] - table[other]).astype(float))
                for arm, other in COMPARED
            },
            "what": name,
        }

    after = {arm: {k: curves[arm][:, k] for k in REPORTED_EPOCHS} for arm in ARMS}
    return {
        "cases": len(cases),
        "others": float(np.mean([c["others"] for c in cases])),
        "never": {arm: sum(n is None for n in needed[arm]) for arm in ARMS},
        "rows": [
            compared("epochs to reach the others, never counted as 21", counted),
            *(
                compared(f"accuracy after {k} epochs", {arm: after[arm][k] for arm in ARMS})
                for k in REPORTED_EPOCHS
            ),
        ],
    }


def chart(cases: list[dict[str, Any]]) -> AnyChart:
    names = dict(zip(ARMS, ARM_NAMES, strict=True))
    rows = [
        {"epochs": k, "accuracy": float(np.mean([c[arm][k] for c in cases])), "newcomer": name}
        for arm, name in names.items()
        for k in range(EPOCHS + 1)
    ]
    lines = alt.Chart(pd.DataFrame(rows)).mark_line(point=True)
    others = pd.DataFrame({"others": [float(np.mean([c["others"] for c in cases]))]})
    rule = (
        alt.Chart(others).mark_rule(strokeDash=[4, 4]).encode(y=alt.Y("others:Q", title="accuracy"))
    )
    lines = lines.encode(
        x=alt.X("epochs:Q", title="epochs of the newcomer"),
        y=alt.Y("accuracy:Q", axis=alt.Axis(format=".0%"), title="accuracy"),
        color=alt.Color(
            "newcomer:N", sort=list(names.values()), legend=alt.Legend(title=None, orient="top")
        ),
    )
    description = "Mean accuracy of newcomers on their own test data; dashed: the other clients."
    return wide(alt.layer(lines, rule), description)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--newcomers",
        type=int,
        default=6,
        help="number of the eleven clients that are tried as newcomers",
    )
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    options = parser.parse_args()
    source = digits(DataLocation())
    seeds = [int(seed) for seed in options.seeds.split(",")]
    cases = []
    for seed, newcomer in track(
        [(seed, newcomer) for seed in seeds for newcomer in range(options.newcomers)], "newcomers"
    ):
        result, trained = case(source, seed, newcomer)
        cases.append(result)
    about = trained.folder.summary().model_dump()
    document = {
        "command": shlex.join(["python", "-m", "benchmarks.newcomer", *sys.argv[1:]]),
        "seeds": seeds,
        **{key: about[key] for key in ("finished", "versions", "machine")},
        "summary": summary(cases),
        "cases": cases,
    }
    write_atomic(RESULTS / "newcomer-digits.json", json.dumps(document, indent=1).encode() + b"\n")
    save(chart(cases), RESULTS / "figures" / "newcomer-digits.svg")
    print(json.dumps(document["summary"], indent=1))


if __name__ == "__main__":
    main()
