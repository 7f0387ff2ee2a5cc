"""A short rehearsal on one's own data: what a federation would gain, and whether to join one.

Methods are chosen on validation data and what the chosen one gains is told on test data, so that
being the best of several does not flatter a number.
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

USUAL_METHODS = [
    label
    for label in (
        *(REFERENCE, "fedproto", "fedgh", "fd", "lg_fedavg"),
        *("fedgh_plus", "fedgh_plus:statistics=own"),  # the second shares nothing
    )
    if label.partition(":")[0] in METHODS
]
"""Methods that are rehearsed when none is named."""

USUAL_ROUNDS = 5
ENOUGH_SEEDS = 5

POINT = 0.01
"""Difference in accuracy below which the cheaper of two methods is recommended."""


@dataclass(frozen=True)
class MethodGain:
    """Result of one method: means over seeds; accuracies and gains are shares, not percent."""

    label: str
    shares: Sharing  # what its uploads tell of a client's data
    accuracy: float  # of the clients, each on its own test data
    global_accuracy: float | None  # over all classes, where it was measured
    gain: Interval  # over training alone, on test data
    validation_gain: Interval  # the same on validation data
    lead: Interval  # over the best method that shares nothing, on validation data
    lead_over: str  # that method
    bytes_per_client: float  # in all rounds of the experiment

    @property
    def sure(self) -> float:
        """Lower end, on validation data, of the gain over every method that shares nothing."""
        return min(self.validation_gain.low, self.lead.low)


@dataclass(frozen=True)
class Advice:
    """Result of a rehearsal.

    Attributes:
        rows: a row for each method that could be rehearsed.
        recommendation: the method to use; None means that training alone is as good.
        reason: why, in a sentence with numbers.
        caveats: what the rehearsal cannot know.
        missing: methods that could not be rehearsed, and why.
        folder: holds the runs, advice.csv and advice.json.
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
) -> Advice:
    """Rehearse an experiment with several methods, and say which one is worth its bytes.

    Args:
        experiment: a named one, a TOML file, or what `fedgh.load` returns.
        methods: names with optional settings, "fedgh,fedgh:server_lr=0"; else the usual ones, and
            that of the experiment.
        rounds: of the rehearsal; else five, or all if the experiment has fewer.
        seeds: each deals the data and draws first weights anew; three are the least to be sure.
        out: the folder for the runs, else runs/advise-NAME; what is there is not run again.
        overrides: changes of the experiment, ["local.epochs=5"].
        data_dir: holds the data sets.
        watch: given a line about a run, returns what watches it.
    """
    whole = configs.load(experiment, overrides, data_dir)
    rounds = min(whole.federation.rounds, USUAL_ROUNDS) if rounds is None else rounds
    if not 1 <= rounds <= whole.federation.rounds:
        raise ConfigError(
            f"{rounds} rounds cannot be rehearsed: the experiment has {whole.federation.rounds} "
            "(federation.rounds)"
        )
    settings = [*overrides, f"federation.rounds={rounds}"]
    planned = plan_comparison(experiment, labels(methods, whole), seeds, settings, data_dir)
    trials = [with_whole_noise(trial, whole) for trial in planned]
    name = whole.data.name if isinstance(experiment, Config) else Path(experiment).stem
    folder = Path("runs", f"advise-{name}") if out is None else Path(out)
    outcome = run_trials(trials, folder, watch, skip_impossible=True)
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
    """A row for each method of a rehearsal, for an experiment of so many rounds."""
    runs = statistics.by_label(outcome)
    if REFERENCE not in runs:
        why = outcome.why_not(REFERENCE)
        raise RunError(f"training alone, which gains are measured against, failed: {why}")
    if len(runs) == 1:
        label, why = next(iter(outcome.missing.items()))
        raise RunError(f"there is nothing to advise on; {label}: {why}")
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
            accuracy=fmean(float(np.nanmean(client_accuracies(run))) for run in found.values()),
            global_accuracy=_global_accuracy(found),
            gain=gain(label, REFERENCE, "accuracy"),
            validation_gain=validation[label],
            lead=gain(label, best, "validation_accuracy"),
            lead_over=best,
            bytes_per_client=fmean(_bytes(run, rounds) for run in found.values()) / clients,
        )
        for label, found in runs.items()
    ]


def recommend(rows: Sequence[MethodGain], rounds: int) -> tuple[str | None, str]:
    """The method to use, None for training alone, and why; judged on validation data.

    A method that exchanges something has to be ahead of training alone and of the best method that
    shares nothing: both intervals lie above zero. Among those, the one whose lower end is highest,
    or the cheapest that is less than a point below. If there is none, a method that shares nothing
    and is ahead of training alone.
    """
    exchanging = [row for row in rows if row.shares != "nothing"]
    ahead = [row for row in exchanging if row.sure > 0]
    if ahead:
        most = max(ahead, key=lambda row: row.sure)
        near = [row for row in ahead if row.sure > most.sure - POINT]
        chosen = min(near, key=lambda row: row.bytes_per_client)
        return chosen.label, _why_join(chosen, most, rounds)
    controls = [row for row in rows if row.shares == "nothing" and row.validation_gain.low > 0]
    if controls:
        alone = max(controls, key=lambda row: row.validation_gain.low)
        return alone.label, (
            f"{alone.label} shares nothing and gains {alone.validation_gain.points} points over "
            f"training alone on validation data ({_on_test(alone)}); no method that "
            "exchanges something is certain to be ahead of it: use it, and do not federate"
        )
    return None, _why_not(exchanging)


def _why_join(chosen: MethodGain, most: MethodGain, rounds: int) -> str:
    reason = (
        f"{chosen.label} gains {chosen.validation_gain.points} points over training alone on "
        f"validation data ({_on_test(chosen)}) for "
        f"{human_bytes(chosen.bytes_per_client)} per client in {rounds} rounds{_over(chosen)}"
    )
    if chosen is not most:
        dearer = human_bytes(most.bytes_per_client)
        reason += f"; the lower end of {most.label} is less than a point higher, for {dearer}"
    return reason


def _why_not(exchanging: list[MethodGain]) -> str:
    if not exchanging:
        return "no method that exchanges something was rehearsed"
    best = max(exchanging, key=lambda row: row.validation_gain.mean)
    return (
        "no method that exchanges something is certain to be ahead on validation data; the largest "
        f"gain, of {best.label}, is {best.validation_gain.points} points over training alone"
        f"{_over(best)}"
    )


def _on_test(row: MethodGain) -> str:
    doubt = "" if row.gain.low > 0 else ", which do not confirm it"
    return f"{row.gain.points} on test data{doubt}"


def _over(row: MethodGain) -> str:
    if row.lead_over == REFERENCE:
        return ""
    return f" and {row.lead.points} over {row.lead_over}, which shares nothing"


def _caveats(rounds: int, whole: int, seeds: int, rows: list[MethodGain]) -> list[str]:
    """List the limits of the rehearsal."""
    out = []
    if rounds < whole:
        out.append(f"{rounds} of {whole} rounds were rehearsed: gains may grow or vanish later")
    out.append(
        "the partition of this experiment stands in for the real partners, whose data may differ "
        "more, or less"
    )
    exchanging = sum(row.shares != "nothing" for row in rows)
    if exchanging > 1:
        out.append(
            f"intervals are not corrected for the number of methods: one of {exchanging} may be "
            f"ahead by chance in up to {2.5 * exchanging:g}% of such rehearsals"
        )
    if seeds == 1:
        out.append("the intervals of one seed are too narrow: its clients share a server")
    elif seeds < ENOUGH_SEEDS:
        out.append(f"more seeds narrow the intervals; those of {seeds} are wide")
    return out


def with_whole_noise(trial: Trial, whole: Config) -> Trial:
    """Give each round of a private rehearsal the noise that it has in the whole federation."""
    privacy, config = whole.privacy, trial.config
    if privacy.protects == "nothing" or config.method.releases_once:
        return trial
    noise = noise_multiplier(privacy.epsilon, privacy.delta, whole.federation.rounds)
    epsilon = epsilon_of(config.federation.rounds / noise**2, privacy.delta)
    less = privacy.model_copy(update={"epsilon": epsilon})
    return replace(trial, config=config.model_copy(update={"privacy": less}))


def labels(methods: str | None, whole: Config) -> str:
    """The methods to rehearse, training alone first."""
    if methods == "all":
        return methods
    words = _usual(whole) if methods is None else [word.strip() for word in methods.split(",")]
    others = [word for word in words if word not in ("", REFERENCE)]
    if not others:
        raise ConfigError(f"--methods {methods}: name at least one beside {REFERENCE}")
    return ",".join([REFERENCE, *others])


def _usual(whole: Config) -> list[str]:
    """The usual methods and the experiment's own, whose settings may make two of them one."""
    found: dict[str, Config] = {}
    for label in (*USUAL_METHODS, whole.method_name):
        (trial,) = plan_comparison(whole, label, [0])
        if trial.config not in found.values():
            found[label] = trial.config
    return list(found)


def _bytes(run: RunFolder, rounds: int) -> float:
    """Sent up and down; rounds that were not rehearsed are taken to be like the last that was."""
    totals = [0, *(record.bytes_total for record in run.records())]
    later = (rounds - len(totals) + 1) * (totals[-1] - totals[-2])
    return float(totals[-1] + later)


def _global_accuracy(runs: Runs) -> float | None:
    found = [run.records()[-1].scores.get("global_accuracy") for run in runs.values()]
    known = [accuracy for accuracy in found if accuracy is not None]
    return fmean(known) if known else None
