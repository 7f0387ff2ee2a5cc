"""A short rehearsal on a user's own data that recommends a method or training alone.

The method is chosen on validation data, and its gain is reported on test data. So the reported gain
is not biased by choosing the best of several methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from fedgh import config as configs
from fedgh.config import Config
from fedgh.core.message import Sharing
from fedgh.defaults import SEEDS
from fedgh.errors import ConfigError, RunError
from fedgh.formats import human_bytes
from fedgh.methods import METHODS
from fedgh.privacy.accounting import epsilon_of, noise_multiplier
from fedgh.runs.folder import RunFolder
from fedgh.studies import statistics
from fedgh.studies.statistics import Interval, Runs, client_accuracies, mean_interval, paired
from fedgh.studies.sweep import Outcome, Trial, Watch, plan_comparison, run_trials

REFERENCE = "standalone"
"""The method of training alone, over which gains are measured."""

DEFAULT_METHODS = [
    label
    for label in (
        *(REFERENCE, "fedproto", "fedgh", "fd", "lg_fedavg"),
        *("fedgh_plus", "fedgh_plus:statistics=own"),  # the second is a control that shares nothing
    )
    if label.partition(":")[0] in METHODS
]
"""Methods that are rehearsed by default."""

DEFAULT_ROUNDS = 5
ENOUGH_SEEDS = 5
"""Number of seeds from which on intervals are not reported as wide."""

POINT = 0.01
"""Difference in accuracy below which the cheaper of two methods is recommended."""


@dataclass(frozen=True)
class MethodGain:
    """Result of one method: means over seeds; accuracies and gains are shares, not percent."""

    label: str
    shares: Sharing  # the kind of its uploads
    accuracy: float  # mean over clients, each on its own test data
    global_accuracy: float | None  # None if not measured
    gain: Interval  # over training alone, on test data
    validation_gain: Interval  # over training alone, on validation data
    lead: Interval  # over the best method that shares nothing, on validation data
    lead_over: str  # the method that `lead` is over
    bytes_per_client: float  # sent in all rounds of the experiment

    @property
    def sure(self) -> float:
        """Lower end of the gain over training alone and controls, on validation data."""
        return min(self.validation_gain.low, self.lead.low)


@dataclass(frozen=True)
class Advice:
    """Result of a rehearsal.

    Attributes:
        rows: one for each method with a result.
        recommendation: the method to use; None recommends training alone.
        reason: a sentence with the numbers behind the recommendation.
        caveats: limits of the rehearsal.
        missing: methods without a result, each with the reason.
        folder: the folder with the runs, advice.csv and advice.json.
    """

    rows: list[MethodGain]
    recommendation: str | None
    reason: str
    caveats: list[str]
    missing: dict[str, str]
    folder: Path


def advise(
    experiment: str | Path | Config = "demo",
    *,
    methods: str | None = None,
    rounds: int | None = None,
    seeds: Sequence[int] = SEEDS,
    out: Path | str | None = None,
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
    watch: Watch | None = None,
    jobs: int = 1,
) -> Advice:
    """Rehearse an experiment with several methods, and recommend one or training alone.

    Raise ConfigError for wrong arguments, and RunError if there is nothing to compare.

    Args:
        experiment: the name of an experiment, a TOML file, or the result of `fedgh.load`.
        methods: names with optional settings, such as "fedgh,fedgh:server_lr=0". By default
            `DEFAULT_METHODS` and the method of the experiment.
        rounds: number of rounds of the rehearsal; by default 5, or all if the experiment has fewer.
        seeds: each gives another partition and other initial weights; use at least three.
        out: folder for the runs, by default runs/advise-NAME; finished runs in it are not repeated.
        overrides: changes of the experiment, such as ["local.epochs=5"].
        data_dir: folder of the data sets.
        watch: function of a line about a run that returns a callback for this run.
        jobs: number of runs at the same time, each in a process with its share of the cores.
    """
    whole = configs.load(experiment, overrides, data_dir)
    rounds = min(whole.federation.rounds, DEFAULT_ROUNDS) if rounds is None else rounds
    if not 1 <= rounds <= whole.federation.rounds:
        raise ConfigError(
            f"{rounds} rounds cannot be rehearsed: choose 1 to {whole.federation.rounds} "
            "(federation.rounds of the experiment)"
        )
    settings = [*overrides, f"federation.rounds={rounds}"]
    planned = plan_comparison(experiment, labels(methods, whole), seeds, settings, data_dir)
    trials = [with_whole_noise(trial, whole) for trial in planned]
    name = whole.data.name if isinstance(experiment, Config) else Path(experiment).stem
    folder = Path("runs", f"advise-{name}") if out is None else Path(out)
    outcome = run_trials(trials, folder, watch, skip_impossible=True, jobs=jobs)
    rows = measure(outcome, whole.federation.rounds)
    recommendation, reason = recommend(rows, whole.federation.rounds)
    caveats = _caveats(rounds, whole.federation.rounds, len(seeds), rows)
    about = {
        "recommendation": recommendation,
        "reason": reason,
        "caveats": caveats,
        "rounds": rounds,
        "rounds_of_experiment": whole.federation.rounds,
        "seeds": list(seeds),
    }
    statistics.write(rows, outcome, folder / "advice", about)
    return Advice(rows, recommendation, reason, caveats, outcome.missing, folder)


def measure(outcome: Outcome, rounds: int) -> list[MethodGain]:
    """Return a row for each method of a rehearsal; `rounds` are those of the whole experiment."""
    runs = statistics.by_label(outcome)
    if REFERENCE not in runs:
        reason = outcome.missing_reason(REFERENCE)
        raise RunError(f"training alone, over which gains are measured, failed: {reason}")
    if len(runs) == 1:
        label, reason = next(iter(outcome.missing.items()))
        raise RunError(f"no method has a result to compare; {label}: {reason}")
    clients = outcome.runs[0][0].config.federation.clients
    shares = {trial.label: trial.config.method.shares for trial, _ in outcome.runs}

    def gain(label: str, over: str, metric: str) -> Interval:
        return mean_interval(paired(runs[label], runs[over], metric=metric))

    validation = {label: gain(label, REFERENCE, "validation_accuracy") for label in runs}
    controls = [label for label in runs if shares[label] == "nothing"]
    best = max(controls, key=lambda label: validation[label].mean)
    return [
        MethodGain(
            label=label,
            shares=shares[label],
            accuracy=fmean(float(np.nanmean(client_accuracies(run))) for run in of_label.values()),
            global_accuracy=_global_accuracy(of_label),
            gain=gain(label, REFERENCE, "accuracy"),
            validation_gain=validation[label],
            lead=gain(label, best, "validation_accuracy"),
            lead_over=best,
            bytes_per_client=fmean(_bytes(run, rounds) for run in of_label.values()) / clients,
        )
        for label, of_label in runs.items()
    ]


def recommend(rows: Sequence[MethodGain], rounds: int) -> tuple[str | None, str]:
    """Return the recommended method (None: training alone) and the reason, from validation data.

    A method that exchanges data must be ahead of training alone and of the best control: both
    intervals are above zero. Among such methods, choose the cheapest whose lower end is less than a
    point below the highest lower end. If there is none, choose a control that is ahead of training
    alone, if any.
    """
    exchanging = [row for row in rows if row.shares != "nothing"]
    ahead = [row for row in exchanging if row.sure > 0]
    if ahead:
        best = max(ahead, key=lambda row: row.sure)
        candidates = [row for row in ahead if row.sure > best.sure - POINT]
        chosen = min(candidates, key=lambda row: row.bytes_per_client)
        return chosen.label, _reason_to_join(chosen, best, rounds)
    controls = [row for row in rows if row.shares == "nothing" and row.validation_gain.low > 0]
    if controls:
        control = max(controls, key=lambda row: row.validation_gain.low)
        return control.label, (
            f"{control.label} shares nothing and gains {control.validation_gain.points} points "
            f"over training alone on validation data ({_on_test(control)}); no method that "
            "exchanges data is certain to be ahead of it: use it, and do not federate"
        )
    return None, _reason_not_to_join(exchanging)


def _reason_to_join(chosen: MethodGain, best: MethodGain, rounds: int) -> str:
    reason = (
        f"{chosen.label} gains {chosen.validation_gain.points} points over training alone on "
        f"validation data ({_on_test(chosen)}) for "
        f"{human_bytes(chosen.bytes_per_client)} per client in {rounds} rounds{_over(chosen)}"
    )
    if chosen is not best:
        cost = human_bytes(best.bytes_per_client)
        reason += f"; the lower end of {best.label} is less than a point higher, for {cost}"
    return reason


def _reason_not_to_join(exchanging: list[MethodGain]) -> str:
    if not exchanging:
        return "no method that exchanges data was rehearsed"
    best = max(exchanging, key=lambda row: row.validation_gain.mean)
    return (
        "no method that exchanges data is certain to be ahead on validation data; the largest "
        f"gain, of {best.label}, is {best.validation_gain.points} points over training alone"
        f"{_over(best)}"
    )


def _on_test(row: MethodGain) -> str:
    unconfirmed = "" if row.gain.low > 0 else ", which do not confirm it"
    return f"{row.gain.points} on test data{unconfirmed}"


def _over(row: MethodGain) -> str:
    if row.lead_over == REFERENCE:
        return ""
    return f" and {row.lead.points} over {row.lead_over}, which shares nothing"


def _caveats(rounds: int, whole: int, seeds: int, rows: list[MethodGain]) -> list[str]:
    """Return the limits of the rehearsal, one sentence each."""
    caveats = []
    if rounds < whole:
        caveats.append(f"{rounds} of {whole} rounds were rehearsed: gains may grow or vanish later")
    caveats.append(
        "the clients of this experiment stand for the real ones, whose data may differ more or less"
    )
    exchanging = sum(row.shares != "nothing" for row in rows)
    if exchanging > 1:
        caveats.append(
            f"intervals are not corrected for the number of methods: one of {exchanging} may be "
            f"ahead by chance in up to {2.5 * exchanging:g}% of such rehearsals"
        )
    if seeds == 1:
        caveats.append(
            "the intervals of one seed are too narrow, because its clients share a server"
        )
    elif seeds < ENOUGH_SEEDS:
        caveats.append(f"the intervals of {seeds} seeds are wide; more seeds narrow them")
    return caveats


def with_whole_noise(trial: Trial, whole: Config) -> Trial:
    """Return the trial with the noise per round that the whole experiment has."""
    privacy, config = whole.privacy, trial.config
    if privacy.protects == "nothing" or config.method.releases_once:
        return trial
    noise = noise_multiplier(privacy.epsilon, privacy.delta, whole.federation.rounds)
    epsilon = epsilon_of(config.federation.rounds / noise**2, privacy.delta)
    spent = privacy.model_copy(update={"epsilon": epsilon})
    return replace(trial, config=config.model_copy(update={"privacy": spent}))


def labels(methods: str | None, whole: Config) -> str:
    """Return the methods to rehearse, separated by commas, training alone first."""
    if methods == "all":
        return methods
    names = _defaults(whole) if methods is None else [each.strip() for each in methods.split(",")]
    others = [name for name in names if name not in ("", REFERENCE)]
    if not others:
        raise ConfigError(f"--methods {methods}: name at least one method beside {REFERENCE}")
    return ",".join([REFERENCE, *others])


def _defaults(whole: Config) -> list[str]:
    """Return the default methods and that of the experiment, without equal configurations."""
    configurations: dict[str, Config] = {}
    for label in (*DEFAULT_METHODS, whole.method_name):
        (trial,) = plan_comparison(whole, label, [0])
        if trial.config not in configurations.values():
            configurations[label] = trial.config
    return list(configurations)


def _bytes(run: RunFolder, rounds: int) -> float:
    """Return the bytes of all rounds; those not rehearsed are assumed to equal the last one."""
    totals = [0, *(record.bytes_total for record in run.records())]
    later = (rounds - len(totals) + 1) * (totals[-1] - totals[-2])
    return float(totals[-1] + later)


def _global_accuracy(runs: Runs) -> float | None:
    scores = [run.records()[-1].scores.get("global_accuracy") for run in runs.values()]
    measured = [score for score in scores if score is not None]
    return fmean(measured) if measured else None
