"""A server that asks whatever it was told to: it knows Flower, and nothing of fedgh.

It is copied into an app of its own. The run configuration names a file with `nodes`, the public
keys of participants, and `questions`: for each its name, its participant, its head and its payload,
bytes in hexadecimal digits. What is answered goes to the file `answers`.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

PATIENCE = 120.0
"""Seconds for an answer, and for all nodes to connect."""

AT_A_TIME = 4
"""Questions that are out at a time: each takes a process of its own."""

Question = dict[str, Any]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask everything, write down what is answered."""
    told = json.loads(Path(str(context.run_config["questions"])).read_text())
    nodes = connected(grid, told["nodes"])
    answers = {m.metadata.group_id: text(m) for m in ask(grid, told["questions"], nodes)}
    done = Path(str(context.run_config["answers"]))
    done.with_suffix(".part").write_text(json.dumps(answers))
    done.with_suffix(".part").rename(done)


def connected(grid: Grid, keys: list[str]) -> list[int]:
    """The nodes with these keys."""
    end = time.monotonic() + PATIENCE
    while True:
        known = {bytes(node.public_key).hex(): node.node_id for node in grid.get_nodes()}
        if known.keys() >= set(keys) or time.monotonic() > end:
            return [known[key] for key in keys]
        time.sleep(0.3)


def ask(grid: Grid, questions: list[Question], nodes: list[int]) -> Iterator[Message]:
    """The answers as they come; Flower answers for who does not."""
    waiting: set[str] = set()
    while questions or waiting:
        now, questions = (
            questions[: AT_A_TIME - len(waiting)],
            questions[AT_A_TIME - len(waiting) :],
        )
        waiting |= set(grid.push_messages([message(q, nodes[q["client"]]) for q in now]))
        found = list(grid.pull_messages(waiting))
        waiting -= {answer.metadata.reply_to_message_id for answer in found}
        yield from found
        time.sleep(0.3)


def message(question: Question, node: int) -> Message:
    content = RecordDict({"fedgh": ConfigRecord({"json": bytes.fromhex(question["head"])})})
    if question["payload"] is not None:
        body = bytes.fromhex(question["payload"])
        array = Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
        content["payload"] = ArrayRecord({"safetensors": array})
    return Message(content, node, "train", ttl=PATIENCE, group_id=question["name"])


def text(answer: Message) -> dict[str, Any]:
    """What an answer says, and whether it has an upload."""
    if answer.has_error():
        return {"error": f"Flower error {answer.error.code}: {answer.error.reason}"}
    head = json.loads(answer.content["fedgh"]["json"])  # type: ignore[arg-type]
    return {**head, "uploads": "payload" in answer.content}
