"""The tables of studies of other quantities: networks, convergence, cost and poisoning."""

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
"""Minimum number of rounds to fit two parameters."""


@contextmanager
def damage_as_run_error(run: RunFolder) -> Iterator[None]:
    """Turn errors due to a damaged or outdated run folder into a RunError that names it."""
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise RunError(
            f"{run.path} does not have the values of this study ({type(error).__name__}: {error}); "
            "delete it, and it is run again"
        ) from None


def structures(study: Study) -> Sheet:
    """Return the table of networks: number of parameters and size, paper and ours."""
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
    """Return the table of the measured quantities of Theorem 2."""
    columns = [
        Column("setting"),
        Column("seed", 0),
        Column("quantity"),
        Column("measured", 4, significant=True),
    ]
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with damage_as_run_error(run):
            quantities = convergence.analyse(run.records(), trial.config.local.lr)
            rows += [[trial.setting, trial.seed, *row] for row in theorem_rows(quantities)]
    note = (
        "Constants are means over clients and rounds. L₁ is estimated as the larger of two "
        "secants, which is a lower bound of the constant in the theorem. So if the left side is "
        "larger than the right side, L₁ is larger than estimated; the theorem is not refuted. A "
        "running mean has the form a / T + b whenever its terms settle early, so a good fit is "
        "weak evidence; with a < 0 the mean still rises, and b is not its limit."
    )
    return Sheet("", "Theorem 2, measured", columns, rows, note)


def theorem_rows(quantities: convergence.Convergence) -> list[list[Cell]]:
    """Return a row for each quantity of Theorem 2."""
    rows: list[list[Cell]] = [
        ["squared gradient norm, first round", quantities.gradient[0]],
        ["squared gradient norm, last round", quantities.gradient[-1]],
        [f"its mean over all {quantities.rounds} rounds", quantities.running_mean[-1]],
        *_fit(quantities),
        ["σ², noise of a mini-batch gradient", quantities.noise],
        ["δ², gap between local and global header", quantities.header_gap],
        ["L₁, smoothness, estimated", quantities.smoothness],
        ["E, local steps per round", quantities.steps],
        ["L₀, loss before training", quantities.initial_loss],
    ]
    if quantities.bound is not None:
        rows += [
            ["Theorem 2, left side", quantities.bound.left],
            ["Theorem 2, right side: the part that falls as 1/T", quantities.bound.transient],
            ["Theorem 2, right side: from σ²", quantities.bound.noise],
            ["Theorem 2, right side: from δ²", quantities.bound.header],
            ["Theorem 2, right side", quantities.bound.right],
            [
                "Theorem 2, right side, with the measured jump of the loss instead of δ²",
                quantities.bound.right_by_jump,
            ],
        ]
        if (
            quantities.smoothness_implied is not None
            and quantities.smoothness_implied > quantities.smoothness
        ):
            rows.append(["L₁ at which both sides would be equal", quantities.smoothness_implied])
    else:
        rows.append(["Theorem 2, right side", quantities.no_bound])
    if quantities.jump is not None:
        rows += [
            [
                "Lemma 2: measured jump of the loss when the header is replaced",
                quantities.jump.measured,
            ],
            ["Lemma 2: claimed upper bound of this jump", quantities.jump.claimed],
        ]
    return rows


def _fit(quantities: convergence.Convergence) -> list[list[Cell]]:
    """Return the rows of the fit; with fewer than three rounds it would be meaningless."""
    if quantities.rounds < MIN_ROUNDS:
        return [["fit of the running mean by a / T + b", f"needs {MIN_ROUNDS} rounds"]]
    return [
        ["fit of the running mean by a / T + b: a", quantities.fit.a],
        ["fit of the running mean: b, its limit", quantities.fit.b],
        ["fit of the running mean: R²", quantities.fit.r_squared],
    ]


def cost_sheet(outcome: Outcome) -> Sheet:
    """Return the table of the cost that FedGH adds, as the paper claims and as measured."""
    columns = [
        Column("setting"),
        Column("seed", 0),
        Column("quantity"),
        Column("paper", 3),
        Column("ours", 5),
    ]
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with damage_as_run_error(run):
            measured = _measure(trial, run)
            rows += [[trial.setting, trial.seed, *row] for row in _cost(measured)]
    note = "Values by time depend on the machine; those by counted operations do not."
    return Sheet("", "Paper and ours", columns, rows, note)


def poisoning_sheet(study: Study, outcome: Outcome) -> Sheet:
    """Return the table of honest clients' accuracy while others send poisoned uploads."""
    columns = [
        Column("method"),
        Column("setting"),
        Column("seed", 0),
        Column("honest accuracy, %"),
        Column("poisoned means dropped, %", 0),
        Column("honest means dropped, %", 0),
        Column("rejected uploads", 0),
    ]
    titles = {setting.name: setting.title for setting in study.settings}
    max_malicious = max((trial.config.attack.clients for trial, _ in outcome.runs), default=0)
    rows: list[list[Cell]] = []
    for trial, run in outcome.runs:
        with damage_as_run_error(run):
            attack, classes = trial.config.attack, len(run.identity().classes)
            sent = [
                attack.count_named_classes(number, len(client.classes), classes)
                for number, client in enumerate(run.clients())
            ]
            honest = range(max_malicious, len(sent))
            effect = poisoning.measure(run.records(), sent, attack.clients, honest)
        poisoned = effect.poisoned_dropped
        rows.append(
            [
                trial.label,
                titles[trial.setting],
                trial.seed,
                100 * effect.accuracy,
                None if poisoned is None else 100 * poisoned,
                100 * effect.honest_dropped,
                effect.rejected,
            ]
        )
    note = (
        f"Honest accuracy is the mean over clients {max_malicious} and up, which are honest in all "
        "runs, after the last round. Dropped means are shares of the class means that the server "
        "received in all rounds."
    )
    return Sheet("", "Honest clients", columns, sorted(rows, key=lambda row: str(row[0])), note)


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


def _cost(measured: cost.Cost) -> list[list[Cell]]:
    return [
        ["class means, in local epochs, by time", 0.5, measured.extraction_epochs],
        [
            "class means, in local epochs, by counted operations",
            0.5,
            measured.extraction_epochs_counted,
        ],
        ["class means, share of the clients' time", None, measured.extraction_share],
        ["server, share of the duration of a round", "negligible", measured.server_share],
        [
            "server, share of the time of clients and server",
            "negligible",
            measured.server_work_share,
        ],
        ["server, milliseconds per class mean", None, 1000 * measured.server_seconds_per_pair],
        ["uploads, KB in total", measured.bytes_up_formula / 1024, measured.bytes_up / 1024],
    ]
