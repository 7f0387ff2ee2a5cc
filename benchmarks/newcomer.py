"""What the global header is worth to a client that joins later: digits, one of eleven left out.

Eleven clients with two digits each are dealt as in the demo. One of them stays away while the
others learn together, then joins: with their header, beside itself without, and beside itself with
a header that nobody has trained (server_lr = 0). The last tells what a header does by being the
same for all and starting every round anew, from what it does by what it has learned.

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
from fedgh.core.rng import isolated
from fedgh.data.partition import by_classes
from fedgh.data.sources import DataLocation, digits
from fedgh.files import write_atomic
from fedgh.methods.fedgh import FedGH
from fedgh.models import extractor
from fedgh.report.charts import AnyChart, wide
from fedgh.report.figures import save
from fedgh.studies.statistics import paired_test
from fedgh.trained.newcomer import join

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CLIENTS, ROUNDS, EPOCHS = 11, 10, 20
LR = 0.02  # twice the demo's, which has two epochs a round: at 0.01 the others learned too little
ZOO, REP_DIM = ("cnn1", "cnn2", "cnn3", "cnn4", "cnn5"), 500
ARMS = ("with_header", "untrained_header", "without_header")
LOOKED_AT = (1, 5, 10, 20)


def participants(source: Source, seed: int) -> list[ClientSpec]:
    dealt = by_classes(source.y.numpy(), source.num_classes, CLIENTS, 2, seed)
    brought = []
    for client, part in enumerate(dealt):
        with isolated(seed, "network", client):
            network = extractor(ZOO[client % len(ZOO)])(source.shape, REP_DIM)
        index = torch.from_numpy(part)
        data = Source(source.name, source.x[index], source.y[index], source.class_names)
        brought.append(ClientSpec(network, data))
    return brought


def learn(
    others: list[ClientSpec], classes: tuple[str, ...], seed: int, header: bool
) -> TrainedFederation:
    """The others' federation; a header that is never trained is there from the first round on."""
    method = FedGH() if header else FedGH(server_lr=0.0)
    federation = Federation(
        others, method, classes=classes, rep_dim=REP_DIM, batch_size=16, lr=LR, seed=seed
    )
    return federation.run(ROUNDS if header else 1, progress=False)


def case(source: Source, seed: int, newcomer: int) -> tuple[dict[str, Any], TrainedFederation]:
    everybody = participants(source, seed)
    others = everybody[:newcomer] + everybody[newcomer + 1 :]
    trained = learn(others, source.class_names, seed, header=True)
    untrained = learn(others, source.class_names, seed, header=False)
    found = join(trained.folder, everybody[newcomer], EPOCHS)
    control = join(untrained.folder, everybody[newcomer], EPOCHS)
    assert found.without_header == control.without_header, "the same client, alone"
    return {
        "seed": seed,
        "newcomer": newcomer,
        "network": ZOO[newcomer % len(ZOO)],
        "classes": found.client.classes,
        "test_samples": len(found.client.loaded.client.data.test),
        "others": found.others,
        "with_header": found.with_header,
        "untrained_header": control.with_header,
        "without_header": found.without_header,
    }, trained


def epochs_needed(curve: list[float], goal: float) -> int | None:
    return next((k for k, score in enumerate(curve) if score >= goal), None)


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the cases, and paired tests of the header against both ways without it."""
    needed = {arm: [epochs_needed(c[arm], c["others"]) for c in cases] for arm in ARMS}
    counted = {  # whoever is never there is given one epoch more than were tried
        arm: np.array([EPOCHS + 1 if n is None else n for n in needed[arm]]) for arm in ARMS
    }
    curves = {arm: np.array([c[arm] for c in cases]) for arm in ARMS}

    def compared(name: str, table: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        own = table["with_header"]
        return {
            **{arm: float(table[arm].mean()) for arm in ARMS},
            **{f"p_{arm}": paired_test((own - table[arm]).astype(float)) for arm in ARMS[1:]},
            "what": name,
        }

    after = {arm: {k: curves[arm][:, k] for k in LOOKED_AT} for arm in ARMS}
    return {
        "cases": len(cases),
        "others": float(np.mean([c["others"] for c in cases])),
        "never": {arm: sum(n is None for n in needed[arm]) for arm in ARMS},
        "rows": [
            compared("epochs to reach the others, never counted as 21", counted),
            *(
                compared(f"accuracy after {k} epochs", {arm: after[arm][k] for arm in ARMS})
                for k in LOOKED_AT
            ),
        ],
    }


def chart(cases: list[dict[str, Any]]) -> AnyChart:
    names = dict(zip(ARMS, ("global header", "untrained header", "no header"), strict=True))
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
    words = "Mean accuracy of newcomers on their own test data; dashed: the others."
    return wide(alt.layer(lines, rule), words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newcomers", type=int, default=6, help="of the eleven, the first so many")
    parser.add_argument("--seeds", default="0,1,2")
    asked = parser.parse_args()
    source = digits(DataLocation())
    todo = [(s, n) for s in map(int, asked.seeds.split(",")) for n in range(asked.newcomers)]
    cases = []
    for seed, newcomer in track(todo, "newcomers"):
        found, trained = case(source, seed, newcomer)
        cases.append(found)
    about = trained.folder.summary()
    document = {
        "command": shlex.join(["python", "-m", "benchmarks.newcomer", *sys.argv[1:]]),
        "seeds": [int(seed) for seed in asked.seeds.split(",")],
        **about.model_dump(include={"finished", "versions", "machine"}),
        "summary": summary(cases),
        "cases": cases,
    }
    write_atomic(RESULTS / "newcomer-digits.json", json.dumps(document, indent=1).encode() + b"\n")
    save(chart(cases), RESULTS / "figures" / "newcomer-digits.svg")
    print(json.dumps(document["summary"], indent=1))


if __name__ == "__main__":
    main()
