"""Callbacks that write the metrics of every round for TensorBoard, Weights & Biases and MLflow.

They are selected by `run.callbacks = ["tensorboard", "wandb", "mlflow"]`. The files of TensorBoard
and of an offline W&B run are in the run folder; MLflow and W&B are configured by their own
environment variables.
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
    """Return the metrics that were measured in a round, its traffic and its times."""
    metrics = record.scores | {"train_loss": record.train_loss, "bytes_total": record.bytes_total}
    seconds = {f"seconds/{phase}": spent for phase, spent in record.seconds.items()}
    return {name: score for name, score in (metrics | seconds).items() if score is not None}


class TensorBoard(Callback):
    """A callback that writes event files into tensorboard/ in the run folder."""

    def __init__(self) -> None:
        need("tensorboard", "run.callbacks = ['tensorboard']")
        self._writer: Any = None

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Open the event files; drop entries that an interrupted run wrote for later rounds."""
        from torch.utils.tensorboard import SummaryWriter  # an extra

        folder = run.path / "tensorboard"
        with explaining():
            check_no_link(folder)
        self._writer = SummaryWriter(folder, purge_step=len(done) + 1)

    def finished_round(self, record: Round) -> None:
        """Write the metrics of the round."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def close(self) -> None:
        """Close the event files."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Callback):
    """A callback that logs to Weights & Biases; a resumed run continues its W&B run."""

    def __init__(self) -> None:
        need("wandb", "run.callbacks = ['wandb']")
        self._run: Any = None

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Start the W&B run with the identifier of this run, or resume it."""
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
        """Log the metrics of the round."""
        self._run.log(scalars(record), step=record.round)

    def close(self) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()


class MLflow(Callback):
    """A callback that logs to the MLflow server or folder in MLFLOW_TRACKING_URI."""

    def __init__(self) -> None:
        need("mlflow", "run.callbacks = ['mlflow']")
        self._client: Any = None
        self._id = ""

    def started(self, experiment: Experiment, run: RunFolder, done: list[Round]) -> None:
        """Resume the MLflow run of this run, or start one."""
        from mlflow import MlflowClient  # an extra

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name("fedgh")
        group = known.experiment_id if known else self._client.create_experiment("fedgh")
        same_run = f"tags.fedgh_run = '{run.run_id}'"
        existing = self._client.search_runs([group], same_run)
        if existing:
            self._id = existing[0].info.run_id
            return
        tags = {"fedgh_run": run.run_id}
        self._id = self._client.create_run(group, tags=tags, run_name=run.path.name).info.run_id
        for section, values in experiment.config.to_table().items():
            for key, value in values.items():
                self._client.log_param(self._id, f"{section}.{key}", value)

    def finished_round(self, record: Round) -> None:
        """Log the metrics of the round."""
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
"""Callbacks with a short name in `run.callbacks`."""


def named_callbacks(names: Sequence[str]) -> list[Callback]:
    """Return the callbacks of a configuration: each is a tracker, or "package.module:name"."""
    callbacks = []
    for name in names:
        try:
            if name not in TRACKERS and ":" not in name:
                raise ConfigError(unknown("callback", name, TRACKERS))
            callbacks.append(as_callback(TRACKERS.get(name) or import_object(name)))
        except ConfigError as error:
            raise ConfigError(f"run.callbacks: {error}") from None
    return callbacks
