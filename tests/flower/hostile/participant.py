"""The app of a malicious client. It uses Flower and the message format, but no code of fedgh.

The test copies it into a client's folder. The node.conf there names this app, and the attack of
each round: `attacks="nothing,garbage,bomb"`.
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

Fields = dict[str, Any]
MEANS, CLASSES = torch.ones(10, 16), torch.arange(10, dtype=torch.int32)
CONTROLS = "\x1b[2J\x07accuracy 99.9%\n\x00" + "\u202e" + "x" * 400
REPETITIONS = 300_000
"""Number of times that the array refers to its chunk of 1 KiB."""

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the attack of the round."""
    request = json.loads(message.content["fedgh"]["json"])  # type: ignore[arg-type]
    with Path("rounds.txt").open("a") as log:
        log.write(f"{request['round']}\n")
    attack = str(context.node_config["attacks"]).split(",")[request["round"] - 1]
    fields = {
        "client_id": request["client"],
        "round": request["round"],
        "num_examples": 0,
        "metrics": {"accuracy": 1.0, "validation_accuracy": 1.0, "train_loss": 1e9},
        "seconds": {"train": 1e9},
        "error": None,
    }
    return Message(ATTACKS[attack](fields), reply_to=message)


def message_content(fields: Fields, payload: bytes | None = None) -> RecordDict:
    """Return the content of a message with these JSON fields and this upload."""
    content = RecordDict({"fedgh": ConfigRecord({"json": json.dumps(fields).encode()})})
    if payload is not None:
        array = Array(dtype="uint8", shape=(len(payload),), stype="safetensors", data=payload)
        content["payload"] = ArrayRecord({"safetensors": array})
    return content


def upload(means: torch.Tensor = MEANS, classes: torch.Tensor = CLASSES, **more: Any) -> bytes:
    return save({"means": means, "classes": classes, **more})


def garbage(fields: Fields) -> RecordDict:
    """Return a record whose bytes cannot be decoded."""
    content = message_content(fields)
    content["fedgh"].__dict__["deflate"] = lambda: b"ConfigRecord  100\0" + b"\xff" * 100
    return content


def bomb(fields: Fields) -> RecordDict:
    """Return an array that refers to its only chunk many times."""
    content = message_content(fields, bytes(2**10))
    array = content["payload"]["safetensors"]
    assert isinstance(array, Array)
    array.__dict__["_chunks"] = array.slice_array() * REPETITIONS
    return content


def silent(fields: Fields) -> RecordDict:
    """Do not answer, and disable the timer that would end this process at the deadline."""
    faulthandler.cancel_dump_traceback_later()
    time.sleep(1000)
    return message_content(fields, upload())


ATTACKS: dict[str, Callable[[Fields], RecordDict]] = {
    "nothing": lambda fields: RecordDict(),
    "garbage-upload": lambda fields: message_content(fields, b"\xff" * 500),
    "nan": lambda fields: message_content(fields, upload(MEANS * torch.nan)),
    "huge": lambda fields: message_content(fields, upload(MEANS * 1e30)),
    "wrong-shape": lambda fields: message_content(fields, upload(MEANS[:, :7].clone())),
    "other-names": lambda fields: message_content(fields, upload(extractor=MEANS.clone())),
    "garbage": garbage,
    "another-client": lambda fields: message_content({**fields, "client_id": 0}, upload()),
    "another-round": lambda fields: message_content({**fields, "round": 77}, upload()),
    "wonderful": lambda fields: message_content({**fields, "metrics": {"accuracy": 1e9}}, upload()),
    "bomb": bomb,
    "words": lambda fields: message_content(
        {**fields, "metrics": {"train_loss": 1e9}, "error": CONTROLS}
    ),
    "silent": silent,
}
