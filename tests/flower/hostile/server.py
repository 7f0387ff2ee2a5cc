"""The app of a malicious server. It uses Flower, but no code of fedgh.

The test copies it into an app of its own. The run configuration names a file with `nodes`, the
public keys of the clients, and `questions`: for each request its name, its client, its JSON and its
payload, both in hexadecimal digits. The answers are written to the file `answers`.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

PATIENCE = 120.0
"""Seconds to wait for an answer, and for all nodes to connect."""

MAX_WAITING = 4
"""Maximum number of requests that wait for an answer; each takes a process."""

Question = dict[str, Any]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Send all requests, and write the answers to a file."""
    plan = json.loads(Path(str(context.run_config["questions"])).read_text())
    nodes = connected(grid, plan["nodes"])
    answers = {m.metadata.group_id: fields_of(m) for m in ask(grid, plan["questions"], nodes)}
    output = Path(str(context.run_config["answers"]))
    output.with_suffix(".part").write_text(json.dumps(answers))
    output.with_suffix(".part").rename(output)


def connected(grid: Grid, keys: list[str]) -> list[int]:
    """Return the nodes with these keys; wait until all are connected."""
    end = time.monotonic() + PATIENCE
    while True:
        connected_nodes = {bytes(node.public_key).hex(): node.node_id for node in grid.get_nodes()}
        if connected_nodes.keys() >= set(keys) or time.monotonic() > end:
            return [connected_nodes[key] for key in keys]
        time.sleep(0.3)


def ask(grid: Grid, questions: list[Question], nodes: list[int]) -> Iterator[Message]:
    """Yield the answers as they arrive; Flower sends an error for a missing one."""
    waiting: set[str] = set()
    while questions or waiting:
        now, questions = (
            questions[: MAX_WAITING - len(waiting)],
            questions[MAX_WAITING - len(waiting) :],
        )
        waiting |= set(grid.push_messages([message(q, nodes[q["client"]]) for q in now]))
        answers = list(grid.pull_messages(waiting))
        waiting -= {answer.metadata.reply_to_message_id for answer in answers}
        yield from answers
        time.sleep(0.3)


def message(question: Question, node: int) -> Message:
    content = RecordDict({"fedgh": ConfigRecord({"json": bytes.fromhex(question["json"])})})
    if question["payload"] is not None:
        payload = bytes.fromhex(question["payload"])
        array = Array(dtype="uint8", shape=(len(payload),), stype="safetensors", data=payload)
        content["payload"] = ArrayRecord({"safetensors": array})
    return Message(content, node, "train", ttl=PATIENCE, group_id=question["name"])


def fields_of(answer: Message) -> dict[str, Any]:
    """Return the fields of an answer, and whether it has an upload."""
    if answer.has_error():
        return {"error": f"Flower error {answer.error.code}: {answer.error.reason}"}
    fields = json.loads(answer.content["fedgh"]["json"])  # type: ignore[arg-type]
    return {**fields, "uploads": "payload" in answer.content}
