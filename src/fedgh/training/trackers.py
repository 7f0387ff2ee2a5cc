"""Callbacks that write the numbers of every round for other programs.

`run.callbacks = ["tensorboard", "wandb", "mlflow"]`: the files of TensorBoard and of an offline
W&B run are in the run folder; MLflow and W&B are set up by their own environment variables.
"""

from collections.abc import Sequence
from typing import Any

from fedgh.core.records import Round
from fedgh.errors import ConfigError, import_object, unknown
from fedgh.extras import need
from fedgh.files import check_no_link, explaining
from fedgh.runs.folder import RunFolder
from fedgh.training.callbacks import Callback, as_callback
from fedgh.training.experiment import Experiment


def scalars(record: Round) -> dict[str, float]:
    """Return the numbers of a round that were taken in it."""
    found = record.scores | {"train_loss": record.train_loss, "bytes_total": record.bytes_total}
    seconds = {f"seconds/{phase}": spent for phase, spent in record.seconds.items()}
    return {name: score for name, score in (found | seconds).items() if score is not None}


class TensorBoard(Callback):
    """Writes event files into tensorboard/ in the run folder."""

    def __init__(self) -> None:
        need("tensorboard", "run.callbacks = ['tensorboard']")
        self._writer: Any = None

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Open the event files; what an interrupted run wrote of later rounds does not count."""
        from torch.utils.tensorboard import SummaryWriter  # an extra

        folder = run.path / "tensorboard"
        with explaining():
            check_no_link(folder)
        self._writer = SummaryWriter(folder, purge_step=len(done) + 1)

    def finished_round(self, record: Round) -> None:
        """Write the numbers of the round."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def close(self) -> None:
        """Close the event files."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Callback):
    """Logs to Weights & Biases: one of its runs for a run, also when that is resumed."""

    def __init__(self) -> None:
        need("wandb", "run.callbacks = ['wandb']")
        self._run: Any = None

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Start or resume the W&B run that has the identity of this run."""
        import wandb  # an extra

        with explaining():
            check_no_link(run.path / "wandb")
        self._run = wandb.init(
            project="fedgh",
            name=run.path.name,
            id=run.run_id,
            resume="allow",
            dir=run.path,
            config=experiment.config.to_table(),
        )

    def finished_round(self, record: Round) -> None:
        """Log the numbers of the round."""
        self._run.log(scalars(record), step=record.round)

    def close(self) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()


class MLflow(Callback):
    """Logs to the MLflow server or folder that MLFLOW_TRACKING_URI names."""

    def __init__(self) -> None:
        need("mlflow", "run.callbacks = ['mlflow']")
        self._client: Any = None
        self._id = ""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Go on with the MLflow run of this run, or start one."""
        from mlflow import MlflowClient  # an extra

        self._client = MlflowClient()
        place = self._client.get_experiment_by_name("fedgh")
        where = place.experiment_id if place else self._client.create_experiment("fedgh")
        of_this = f"tags.fedgh_run = '{run.run_id}'"
        found = self._client.search_runs([where], of_this)
        if found:
            self._id = found[0].info.run_id
            return
        tags = {"fedgh_run": run.run_id}
        self._id = self._client.create_run(where, tags=tags, run_name=run.path.name).info.run_id
        for section, values in experiment.config.to_table().items():
            for key, value in values.items():
                self._client.log_param(self._id, f"{section}.{key}", value)

    def finished_round(self, record: Round) -> None:
        """Log the numbers of the round."""
        for name, value in scalars(record).items():
            self._client.log_metric(self._id, name, value, step=record.round)

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        if self._client is not None:
            self._client.set_terminated(self._id)


TRACKERS: dict[str, type[Callback]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}
"""Callbacks that a configuration can name in one word."""


def named_callbacks(names: Sequence[str]) -> list[Callback]:
    """Return the callbacks that a configuration names: a tracker, or "package.module:name"."""
    found = []
    for name in names:
        try:
            if name not in TRACKERS and ":" not in name:
                raise ConfigError(unknown("callback", name, TRACKERS))
            found.append(as_callback(TRACKERS.get(name) or import_object(name)))
        except ConfigError as error:
            raise ConfigError(f"run.callbacks: {error}") from None
    return found
