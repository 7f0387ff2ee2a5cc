"""A client's model as a file for other programs, checked before it gets its name.

safetensors   the weights. Whoever reads them builds the network and prepares the inputs.
onnx          the whole way from inputs as they are to logits, for any runtime of ONNX.
torch-export  the same for torch.export.load, without the code of the network.

Each carries one JSON text, `fedgh`: classes, inputs, how they are prepared, and where it is from.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedgh.core.batches import BYTE_OFFSET, BYTE_SCALE, to_input
from fedgh.core.method import Method
from fedgh.core.rng import stream
from fedgh.core.types import Client, part
from fedgh.errors import ConfigError, RunError, one_line, printable, unknown
from fedgh.extras import need
from fedgh.files import make_folder, write_atomic
from fedgh.models.body import Adapted
from fedgh.trained.clients import TrainedClient
from fedgh.version import __version__

FORMAT_VERSION = 1
KEY = "fedgh"
"""Under which the JSON text is found in a file."""

MAX_SAMPLES = 64
"""Samples on which a file is compared with the model."""

TOLERANCE = 1e-4
"""The largest difference between logits, relative to the largest logit. Others add up in another
order: that is about 1e-6."""

Compute = Callable[[Tensor], Tensor]
"""From raw inputs to logits."""


@dataclass(frozen=True)
class Format:
    """A way to write a model, and to run what was written."""

    ending: str
    includes_preprocessing: bool
    tolerance: float
    write: Callable[[TrainedClient, str], bytes]
    read: Callable[[TrainedClient, bytes], Compute]


@dataclass(frozen=True)
class ExportResult:
    """A file that was written, and how it compares with the model."""

    path: Path
    difference: float  # between logits, relative to the largest
    samples: int  # on which they were compared
    own: bool  # whether these are the client's test samples; else they are random


def export(trained: TrainedClient, path: Path, format_name: str) -> ExportResult:
    """Write a client's model; what does not give the same logits is an error, and no file."""
    if format_name not in FORMATS:
        raise ConfigError(unknown("format", format_name, FORMATS))
    kind = FORMATS[format_name]
    x, own = _samples(trained)
    with _quiet(), _explained(trained, format_name):
        content = kind.write(trained, json.dumps(_about(trained, kind.includes_preprocessing)))
        found = _difference(trained, kind.read(trained, content), x)
    client = trained.loaded.client
    if format_name == "safetensors" and found != found and (client.modules or client.memory):
        raise RunError(
            f"client {trained.number}: a safetensors file holds one network, and "
            f"{trained.loaded.method.name} predicts with more; export it as onnx or torch-export"
        )
    if not found <= kind.tolerance:  # nor is one that is not a number
        raise RunError(
            f"client {trained.number} as {format_name}: logits differ by {found:.1e} of the "
            f"largest, more than {kind.tolerance:g}; nothing was written"
        )
    make_folder(path.absolute().parent)
    write_atomic(path.absolute(), content)
    return ExportResult(path, found, len(x), own)


def _about(trained: TrainedClient, included: bool) -> dict[str, Any]:
    """All that a reader has to know."""
    inputs, loaded = trained.inputs, trained.loaded
    bytes_come_in = inputs.dtype == torch.uint8
    scale, offset = (BYTE_SCALE, BYTE_OFFSET) if bytes_come_in else (1.0, 0.0)
    words = "as float32, input * scale + offset" if bytes_come_in else "none: inputs as they are"
    return {
        "format_version": FORMAT_VERSION,
        "fedgh": __version__,
        "classes": list(trained.class_names),
        "held": trained.classes,
        "input": {"shape": list(inputs.shape), "dtype": inputs.dtype_name},
        "preprocessing": {"words": words, "scale": scale, "offset": offset, "included": included},
        "network": trained.network,
        "adapted": _adapted(trained.model.extractor, included),
        "client": trained.number,
        "run": loaded.fingerprint,
        "round": loaded.round,
        "accuracy": trained.accuracy,
    }


def _adapted(extractor: nn.Module, included: bool) -> dict[str, Any] | None:
    """What stands around a network that was brought; its weights do not tell."""
    if not isinstance(extractor, Adapted):
        return None
    body = extractor.body
    return {
        "transform": None if body.transform is None else repr(body.transform),
        "layer": body.layer,
        "projection": repr(extractor.projection),
        "included": included,
    }


def _samples(trained: TrainedClient) -> tuple[Tensor, bool]:
    """Some of the client's own test samples; random inputs where its data are not here."""
    test = trained.loaded.client.data.test
    if len(test):
        return test.x[test.index[:MAX_SAMPLES]], True
    inputs, rng = trained.inputs, stream(0, "export")
    shape = (MAX_SAMPLES, *inputs.shape)
    if inputs.dtype == torch.uint8:
        return torch.randint(256, shape, generator=rng, dtype=torch.uint8), False
    return torch.randn(shape, generator=rng), False


def _difference(trained: TrainedClient, run: Compute, x: Tensor) -> float:
    """How far the logits of a file are from the model's, for many inputs and for one alone."""
    worst = torch.zeros(())
    for some in (x, x[:1]):
        expected = trained.logits(some)
        with torch.no_grad():
            far = (run(some) - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
        worst = torch.maximum(worst, far)
    return float(worst)


class _FromRaw(nn.Module):
    """From inputs as they are to the logits by which the client is judged."""

    def __init__(self, client: Client, method: Method) -> None:
        super().__init__()
        self.model, self.beside = client.model, client.modules
        self._client, self._method = client, method

    def forward(self, x: Tensor) -> Tensor:
        return self._method.logits(self._client, to_input(x))


def _trace(trained: TrainedClient) -> ExportedProgram:
    """The model as a graph, for any number of inputs.

    It is traced on zeros, since the file keeps what it was traced on; and it says nothing of where
    the code was.
    """
    inputs = trained.inputs
    zeros = torch.zeros(2, *inputs.shape, dtype=inputs.dtype)
    module = _FromRaw(trained.loaded.client, trained.loaded.method)
    with torch.no_grad():
        traced = torch.export.export(module, (zeros,), dynamic_shapes=({0: Dim("batch")},))
    for node in traced.graph.nodes:
        node.meta.pop("stack_trace", None)
    return traced


def _write_safetensors(trained: TrainedClient, about: str) -> bytes:
    return safetensors.torch.save(part(trained.loaded.client.state(), "model."), {KEY: about})


def _read_safetensors(trained: TrainedClient, content: bytes) -> Compute:
    client = trained.loaded.client
    other = replace(client, model=deepcopy(client.model), modules=deepcopy(client.modules))
    other.memory = {name: tensor.clone() for name, tensor in client.memory.items()}
    other.model.load_state_dict(safetensors.torch.load(content))
    for tensor in (*other.modules.state_dict().values(), *other.memory.values()):
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)  # the file does not have them: what needs them is found out
    return _FromRaw(other, trained.loaded.method)


def _write_torch(trained: TrainedClient, about: str) -> bytes:
    out = io.BytesIO()
    torch.export.save(_trace(trained), out, extra_files={f"{KEY}.json": about})
    return out.getvalue()


def _read_torch(_: TrainedClient, content: bytes) -> Compute:
    run: Compute = torch.export.load(io.BytesIO(content)).module()
    return run


def _write_onnx(trained: TrainedClient, about: str) -> bytes:
    need("onnx", "writing ONNX")
    program = torch.onnx.export(
        _trace(trained), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False
    )
    assert program is not None, "with `dynamo` there is one"
    model = program.model_proto
    model.metadata_props.add(key=KEY, value=about)
    content: bytes = model.SerializeToString()
    return content


def _read_onnx(_: TrainedClient, content: bytes) -> Compute:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["logits"], {"x": x.contiguous().numpy()})[0])


FORMATS = {
    "safetensors": Format(".safetensors", False, 0.0, _write_safetensors, _read_safetensors),
    "onnx": Format(".onnx", True, TOLERANCE, _write_onnx, _read_onnx),
    "torch-export": Format(".pt2", True, TOLERANCE, _write_torch, _read_torch),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk, to a user who can do nothing about it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _explained(trained: TrainedClient, format_name: str) -> Iterator[None]:
    """A network may do what an exporter cannot follow."""
    try:
        yield
    except (ConfigError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"client {trained.number}: its network '{trained.network}' cannot be written as "
            f"{format_name}: {printable(one_line(error))}"
        ) from None
