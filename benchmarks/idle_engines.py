"""Duration of a round of idle participants with Ray and with Flower's messages in one process.

Beside them: the same number of empty tasks of Ray, and of empty messages in Flower's simulation,
each with 4 KB in both directions.

python -m benchmarks.idle_engines [--participants 1000] [--rounds 6]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import ray
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks.idle import Idle, idle_config, idle_experiment, idle_samples, smallest
from fedgh.engines.workers import available_cores
from fedgh.flower import client
from fedgh.flower.bound import NodeConfig
from fedgh.flower.grid import LocalGrid, Node
from fedgh.flower.keys import read_public_key, write_key_pair
from fedgh.flower.server import serve
from fedgh.runs.folder import RunFolder
from fedgh.training import loop

NUMBERS = np.zeros(1000, np.float32)  # 4 KB


def ray_engine(participants: int, rounds: int, folder: Path) -> list[float]:
    """fedgh, engine `ray`, a checkpoint every round"""
    experiment = idle_experiment(participants, rounds, "run.engine=ray", "run.workers=2")
    return _seconds(loop.run(experiment, folder / "run"))


def grid_engine(participants: int, rounds: int, folder: Path) -> list[float]:
    """fedgh, Flower's messages in one process, client and server with files as on two machines"""
    x, y = idle_samples(participants)
    np.savez(folder / "samples.npz", x=x.numpy(), y=y.numpy())
    data = ["data.name=npz", f"data.path={folder / 'samples.npz'}"]
    settings = folder / "experiment.toml"
    settings.write_text(idle_config(participants, rounds, *data).to_toml())
    allowed = ",".join(f"{each.__module__}:{each.__name__}" for each in (Idle, smallest))
    shared = {
        "state": str(folder / "states"),
        "path": str(folder / "samples.npz"),
        "allow": allowed,
    }
    nodes = {}
    for number in range(participants):
        key = folder / f"{number}.pub"
        write_key_pair(folder / f"{number}.key", key)
        node: NodeConfig = {**shared, "client": number}
        nodes[1 + number] = Node(client.app, node, read_public_key(key))
    out = folder / "grid"
    serve(
        LocalGrid(nodes),
        1,
        {"experiment": str(settings), "out": str(out), "participants": str(folder)},
    )
    return _seconds(RunFolder(out))


def plain_ray(participants: int, rounds: int, _: Path) -> list[float]:
    """Ray alone: empty tasks"""

    task = ray.remote(_unchanged)
    ray.init(num_cpus=available_cores(), include_dashboard=False, log_to_driver=False)
    try:
        return list(
            _timed(lambda: ray.get([task.remote(NUMBERS) for _ in range(participants)]), rounds)
        )
    finally:
        ray.shutdown()


def flower_simulation(participants: int, rounds: int, _: Path) -> list[float]:
    """Flower's own simulation: empty messages"""
    seconds: list[float] = []
    server, app = ServerApp(), ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        return Message(message.content, reply_to=message)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        while len(list(grid.get_node_ids())) < participants:
            time.sleep(0.1)

        def a_round() -> None:
            messages = [
                Message(
                    RecordDict({"numbers": ArrayRecord([NUMBERS])}),
                    dst_node_id=node,
                    message_type="train",
                )
                for node in grid.get_node_ids()
            ]
            answers = list(grid.send_and_receive(messages))
            assert len(answers) == participants

        seconds.extend(_timed(a_round, rounds))

    run_simulation(server, app, participants, backend_config={"client_resources": {"num_cpus": 1}})
    return seconds


def _unchanged(numbers: Any) -> Any:
    return numbers


def _timed(work: Callable[[], object], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        yield time.perf_counter() - start


def _seconds(run: RunFolder) -> list[float]:
    return [record.seconds["total"] for record in run.records()]


def main() -> None:
    """Print the median seconds of a round of each, without the first round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--participants", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    for measure in (ray_engine, grid_engine, plain_ray, flower_simulation):
        with tempfile.TemporaryDirectory(prefix="fedgh-idle-") as folder:
            seconds = measure(given.participants, given.rounds, Path(folder))
        print(f"{median(seconds[1:]):8.3f} s  {(measure.__doc__ or '').strip()}", flush=True)


if __name__ == "__main__":
    main()
