"""The tables of the studies that are not about accuracy: networks, convergence, cost."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedgh.core.types import Task
from fedgh.errors import RunError
from fedgh.models import extractor, split_model
from fedgh.runs.folder import RunFolder
from fedgh.studies import convergence, cost, poisoning
from fedgh.studies.study import Study
from fedgh.studies.sweep import Outcome, Trial
from fedgh.tables import Cell, Column, Sheet

PAPER_TASK = Task(
    num_classes=10, rep_dim=500, num_clients=10, rounds=1, seed=0, input_shape=(3, 32, 32)
)
MIB = 2**20
MIN_ROUNDS = 3


@contextmanager
def readable(run: RunFolder) -> Iterator[None]:
    """What a damaged run folder, or one of an earlier version, does not hold is a RunError."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"{run.path} does not hold what this study measures ({type(error).__name__}: {error}); "
            "delete it, and it is run again"
        ) from None


def structures(study: Study) -> Sheet:
    """Parameters and sizes of the networks, counted."""
    columns = [
        Column("network"),
        Column("parameters", 0),
        Column("paper, MB"),
        Column("ours, MB"),
        Column("difference", signed=True),
    ]
    rows: list[list[Cell]] = []
    for row in study.structures:
        model = split_model(extractor(row.extractor), PAPER_TASK)
        count = sum(parameter.numel() for parameter in model.parameters())
        size = 4 * count / MIB
        rows.append([row.extractor, count, row.printed_mb, size, size - row.printed_mb])
    note = "With the header for ten classes; 1 MB = 2^20 bytes."
    return Sheet("", "Paper and ours", columns, rows, note)


def convergence_sheet(outcome: Outcome) -> Sheet:
    """What Theorem 2 speaks of, as it was measured."""
    columns = [
        Column("setting"),
        Column("seed", 0),
        Column("quantity"),
        Column("measured", 4, significant=True),
    ]
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with readable(run):
            found = convergence.analyse(run.records(), trial.config.local.lr)
            rows += [[trial.place, trial.seed, *row] for row in theorem_rows(found)]
    note = (
        "Constants are means over clients and rounds. L₁ is the larger of two secants: the "
        "assumption's constant is at least that, so that a left side above the right one says "
        "that L₁ is larger, not that the theorem is wrong. A running mean takes the form "
        "a / T + b whenever its terms settle soon, so a good fit says little; with a < 0 it "
        "still rises, and b is no floor."
    )
    return Sheet("", "Theorem 2, measured", columns, rows, note)


def theorem_rows(found: convergence.Convergence) -> list[list[Cell]]:
    """Return a row for each quantity of Theorem 2."""
    rows: list[list[Cell]] = [
        ["squared gradient norm, first round", found.gradient[0]],
        ["squared gradient norm, last round", found.gradient[-1]],
        [f"its mean over all {found.rounds} rounds", found.running_mean[-1]],
        *_fit(found),
        ["σ², noise of a mini-batch gradient", found.noise],
        ["δ², gap between local and global header", found.header_gap],
        ["L₁, smoothness, estimated", found.smoothness],
        ["E, local steps per round", found.steps],
        ["L₀, loss at the start", found.initial_loss],
    ]
    if found.bound is not None:
        rows += [
            ["Theorem 2, left side", found.bound.left],
            ["Theorem 2, right side: the part that falls as 1/T", found.bound.transient],
            ["Theorem 2, right side: from σ²", found.bound.noise],
            ["Theorem 2, right side: from δ²", found.bound.header],
            ["Theorem 2, right side", found.bound.right],
            ["the same with the measured jump of the loss for δ²", found.bound.right_by_jump],
        ]
        if found.smoothness_implied is not None and found.smoothness_implied > found.smoothness:
            rows.append(["L₁ that would make these sides equal", found.smoothness_implied])
    else:
        rows.append(["Theorem 2, right side", found.no_bound])
    if found.jump is not None:
        rows += [
            ["Lemma 2: the loss jumps when the header is replaced by", found.jump.measured],
            ["Lemma 2: it claims at most", found.jump.claimed],
        ]
    return rows


def _fit(found: convergence.Convergence) -> list[list[Cell]]:
    """Two numbers are fitted: with fewer than three rounds that says nothing."""
    if found.rounds < MIN_ROUNDS:
        return [["fit of the running mean by a / T + b", f"needs {MIN_ROUNDS} rounds"]]
    return [
        ["fit of the running mean by a / T + b: a", found.fit.a],
        ["fit: b, which it tends to", found.fit.b],
        ["fit: R²", found.fit.r_squared],
    ]


def cost_sheet(outcome: Outcome) -> Sheet:
    """What FedGH adds to the work, beside what the paper says of it."""
    columns = [
        Column("setting"),
        Column("seed", 0),
        Column("quantity"),
        Column("paper", 3),
        Column("ours", 5),
    ]
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with readable(run):
            found = _measure(trial, run)
            rows += [[trial.place, trial.seed, *row] for row in _cost(found)]
    note = "Epochs by the clock depend on the machine; by counted operations they do not."
    return Sheet("", "Paper and ours", columns, rows, note)


def poisoning_sheet(study: Study, outcome: Outcome) -> Sheet:
    """How those who never lie fare while others do."""
    columns = [
        Column("method"),
        Column("setting"),
        Column("seed", 0),
        Column("honest accuracy, %"),
        Column("lies left out, %", 0),
        Column("truths left out, %", 0),
        Column("rejected", 0),
    ]
    titles = {case.name: case.title for case in study.cases}
    most = max((trial.config.attack.clients for trial, _ in outcome.runs), default=0)
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with readable(run):
            attack, classes = trial.config.attack, len(run.identity().classes)
            named = [
                attack.count_named_classes(number, len(client.classes), classes)
                for number, client in enumerate(run.clients())
            ]
            honest = range(most, len(named))
            harm = poisoning.measure(run.records(), named, attack.clients, honest)
        lies = None if harm.lies_left_out is None else 100 * harm.lies_left_out
        rows.append(
            [
                trial.label,
                titles[trial.place],
                trial.seed,
                100 * harm.accuracy,
                lies,
                100 * harm.truths_left_out,
                harm.rejected,
            ]
        )
    note = (
        f"The mean over clients {most} and up, which lie in none of the runs, after the last "
        "round. Left out: of the class means that the server received, over all rounds."
    )
    return Sheet("", "The honest ones", columns, sorted(rows, key=lambda row: str(row[0])), note)


def _measure(trial: Trial, run: RunFolder) -> cost.Cost:
    config, identity = trial.config, run.identity()
    task = Task(
        num_classes=len(identity.classes),
        rep_dim=config.model.rep_dim,
        num_clients=config.federation.clients,
        rounds=config.federation.rounds,
        seed=config.federation.seed,
        input_shape=tuple(identity.shape),
    )
    return cost.measure(run.records(), run.clients(), task, config.local.epochs)


def _cost(found: cost.Cost) -> list[list[Cell]]:
    return [
        ["class means, in local epochs, by the clock", 0.5, found.extraction_epochs],
        [
            "class means, in local epochs, by counted operations",
            0.5,
            found.extraction_epochs_counted,
        ],
        ["class means, share of the clients' time", None, found.extraction_share],
        ["server, share of the round by the clock", "negligible", found.server_share],
        ["server, share of all work", "negligible", found.server_work_share],
        ["server, milliseconds per pair", None, 1000 * found.server_seconds_per_pair],
        ["sent up, KB in all", found.bytes_up_formula / 1024, found.bytes_up / 1024],
    ]
