"""Questions of the server about some public samples, and the clients' answers: their logits.

The server's state has `wanted`, the positions of the samples that it asks about. They are sent to
all participants, whose uploads have a row for each of them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from fedgh.core.local import outputs
from fedgh.core.message import Message, Own, Shapes
from fedgh.core.method import Method
from fedgh.core.types import Client, Payload, Task
from fedgh.core.uploads import Uploads
from fedgh.core.wire import Dim, Field, Spec

MIN_ENTROPY = 1e-3
"""Entropy below which an answer does not gain weight: its inverse would exceed all bounds."""


def _question(_: Method, shapes: Shapes) -> Spec:
    most = shapes.task.public_size
    return {"wanted": Field(torch.int32, (Dim("wanted", most),), at_least=0, at_most=most - 1)}


def _answer(_: Method, shapes: Shapes) -> Spec:
    rows = Dim("wanted", shapes.task.public_size)
    return {"logits": Field(torch.float32, (rows, shapes.task.num_classes))}


QUESTION: Message = Own(_question, about="numbers of public samples")
"""`wanted` [s]: the positions of the public samples that the server asks about."""

ANSWER: Message = Own(_answer, about="logits of some public samples")
"""`logits` [s, classes]: a row for each of them."""


def everything(task: Task) -> Tensor:
    """Return the positions of all public samples."""
    return torch.arange(task.public_size, dtype=torch.int32)


def answer(client: Client, down: Payload) -> Payload:
    """Return the logits of the client's model for the samples that a download asks about."""
    public, wanted = client.public, down["wanted"].long().cpu()
    if not len(wanted):
        return {"logits": torch.zeros(0, client.task.num_classes)}
    asked = replace(public, index=public.index[wanted])
    return {"logits": outputs(client, client.model, asked)}


def collected(server: Payload, uploads: Uploads) -> Tensor:
    """Return the answers of a round, [clients, s, classes].

    An upload with another number of rows is no answer: nobody knows which samples it is about. It
    is left out, and the number of such uploads is the metric `wrong_answers` of the round.
    """
    sent = [upload.payload["logits"] for upload in uploads]
    shape = (len(server["wanted"]), uploads.task.num_classes)
    fitting = [logits for logits in sent if logits.shape == shape]
    if len(fitting) < len(sent):
        uploads.metrics["wrong_answers"] = len(sent) - len(fitting)
    return torch.stack(fitting) if fitting else torch.zeros(0, *shape)


def fused(answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of right answers to each question, and which questions have one.

    A client's weight for a sample is the softmax, over the clients that are right, of the inverse
    entropy of their outputs.
    """
    right = answers.argmax(2) == labels
    entropy = torch.special.entr(answers.softmax(2)).sum(2).clamp(min=MIN_ENTROPY)
    weights = (1 / entropy).masked_fill(~right, -torch.inf).softmax(0)
    weights = weights.nan_to_num(0.0)  # of a sample for which no client is right
    return (weights[:, :, None] * answers).sum(0), right.any(0)
