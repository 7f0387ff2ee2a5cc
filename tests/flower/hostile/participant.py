"""A participant that lies: it knows Flower and what messages of fedgh look like, no more.

It is copied into a participant's folder, where node.conf names it, and names what it does in each
round: `attacks="nothing,garbage,bomb"`.
"""

import faulthandler
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save

Head = dict[str, Any]
MEANS, CLASSES = torch.ones(10, 16), torch.arange(10, dtype=torch.int32)
CONTROLS = "\x1b[2J\x07accuracy 99.9%\n\x00" + "\u202e" + "x" * 400
BOMB = 300_000
"""Times that a chunk of a KiB is named."""

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the attack of the round."""
    asked = json.loads(message.content["fedgh"]["json"])  # type: ignore[arg-type]
    with Path("asked.txt").open("a") as log:
        log.write(f"{asked['round']}\n")
    attack = str(context.node_config["attacks"]).split(",")[asked["round"] - 1]
    head = {
        "client_id": asked["client"],
        "round": asked["round"],
        "num_examples": 0,
        "metrics": {"accuracy": 1.0, "validation_accuracy": 1.0, "train_loss": 1e9},
        "seconds": {"train": 1e9},
        "error": None,
    }
    return Message(ATTACKS[attack](head), reply_to=message)


def told(head: Head, body: bytes | None = None) -> RecordDict:
    """A message with this head and this upload."""
    content = RecordDict({"fedgh": ConfigRecord({"json": json.dumps(head).encode()})})
    if body is not None:
        array = Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
        content["payload"] = ArrayRecord({"safetensors": array})
    return content


def upload(means: torch.Tensor = MEANS, classes: torch.Tensor = CLASSES, **more: Any) -> bytes:
    return save({"means": means, "classes": classes, **more})


def garbage(head: Head) -> RecordDict:
    """Garbage that says it is a record."""
    content = told(head)
    content["fedgh"].__dict__["deflate"] = lambda: b"ConfigRecord  100\0" + b"\xff" * 100
    return content


def bomb(head: Head) -> RecordDict:
    """An array that names its only chunk many times."""
    content = told(head, bytes(2**10))
    array = content["payload"]["safetensors"]
    assert isinstance(array, Array)
    array.__dict__["_chunks"] = array.slice_array() * BOMB
    return content


def silent(head: Head) -> RecordDict:
    """No answer, and nothing that would end this process at the deadline."""
    faulthandler.cancel_dump_traceback_later()
    time.sleep(1000)
    return told(head, upload())


ATTACKS: dict[str, Callable[[Head], RecordDict]] = {
    "nothing": lambda head: RecordDict(),
    "garbage-upload": lambda head: told(head, b"\xff" * 500),
    "nan": lambda head: told(head, upload(MEANS * torch.nan)),
    "huge": lambda head: told(head, upload(MEANS * 1e30)),
    "wrong-shape": lambda head: told(head, upload(MEANS[:, :7].clone())),
    "other-names": lambda head: told(head, upload(extractor=MEANS.clone())),
    "garbage": garbage,
    "another-client": lambda head: told({**head, "client_id": 0}, upload()),
    "another-round": lambda head: told({**head, "round": 77}, upload()),
    "wonderful": lambda head: told({**head, "metrics": {"accuracy": 1e9}}, upload()),
    "bomb": bomb,
    "words": lambda head: told({**head, "metrics": {"train_loss": 1e9}, "error": CONTROLS}),
    "silent": silent,
}
