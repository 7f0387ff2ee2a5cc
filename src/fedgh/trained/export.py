"""Export a client's model to a file for other programs, and check it before it is written.

safetensors   the weights; the reading program makes the network and prepares the inputs.
onnx          the whole function from raw inputs to logits, for any ONNX runtime.
torch-export  the whole function for torch.export.load, without the code of the network.

Each file contains a JSON text, `fedgh`: classes, inputs, preprocessing, and the run it comes from.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import isnan
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
from fedgh.trained.clients import TrainedClient, logits_of
from fedgh.version import __version__

FORMAT_VERSION = 1
KEY = "fedgh"
"""The name of the JSON text in a file."""

MAX_SAMPLES = 64
"""Samples on which a file is compared with the model."""

TOLERANCE = 1e-4
"""The largest difference between logits, relative to the largest logit. Another order of additions
changes them by about 1e-6."""

Compute = Callable[[Tensor], Tensor]
"""Function from raw inputs to logits."""


@dataclass(frozen=True)
class Format:
    """A file format: functions that write a model and that run a written model."""

    ending: str
    includes_preprocessing: bool
    tolerance: float
    write: Callable[[TrainedClient, str], bytes]
    read: Callable[[TrainedClient, bytes], Compute]


@dataclass(frozen=True)
class ExportResult:
    """An exported file, and the difference between its logits and the model's."""

    path: Path
    difference: float  # between logits, relative to the largest logit
    samples: int  # number of inputs that were compared
    own: bool  # True: the client's test samples; False: random inputs


def export(trained: TrainedClient, path: Path, format_name: str) -> ExportResult:
    """Write a client's model to a file.

    Raise RunError, and write nothing, if the file would return other logits than the model.
    """
    if format_name not in FORMATS:
        raise ConfigError(unknown("format", format_name, FORMATS))
    kind = FORMATS[format_name]
    x, own = _samples(trained)
    with _quiet(), _explained(trained, format_name):
        content = kind.write(trained, json.dumps(_about(trained, kind.includes_preprocessing)))
        difference = _difference(trained, kind.read(trained, content), x)
    client = trained.loaded.client
    if format_name == "safetensors" and isnan(difference) and (client.modules or client.memory):
        raise RunError(
            f"client {trained.number}: a safetensors file holds one network, and "
            f"{trained.loaded.method.name} predicts with more; export it as onnx or torch-export"
        )
    if not difference <= kind.tolerance:  # also true for NaN
        raise RunError(
            f"client {trained.number} as {format_name}: logits differ by {difference:.1e} of the "
            f"largest, more than {kind.tolerance:g}; nothing was written"
        )
    make_folder(path.absolute().parent)
    write_atomic(path.absolute(), content)
    return ExportResult(path, difference, len(x), own)


def _about(trained: TrainedClient, included: bool) -> dict[str, Any]:
    """Return the contents of the JSON text."""
    inputs, loaded = trained.inputs, trained.loaded
    is_bytes = inputs.dtype == torch.uint8
    scale, offset = (BYTE_SCALE, BYTE_OFFSET) if is_bytes else (1.0, 0.0)
    text = "as float32, input * scale + offset" if is_bytes else "none: inputs as they are"
    return {
        "format_version": FORMAT_VERSION,
        "fedgh": __version__,
        "classes": list(trained.class_names),
        "held": trained.classes,
        "input": {"shape": list(inputs.shape), "dtype": inputs.dtype_name},
        "preprocessing": {"words": text, "scale": scale, "offset": offset, "included": included},
        "network": trained.network,
        "adapted": _adapted(trained.model.extractor, included),
        "client": trained.number,
        "run": loaded.fingerprint,
        "round": loaded.round,
        "accuracy": trained.accuracy,
    }


def _adapted(extractor: nn.Module, included: bool) -> dict[str, Any] | None:
    """Return what surrounds a user's network and is not visible in its weights."""
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
    """Return inputs for the comparison, and True if they are test samples of the client.

    They are random if the client's data are not here.
    """
    test = trained.loaded.client.data.test
    if len(test):
        return test.x[test.index[:MAX_SAMPLES]], True
    inputs, rng = trained.inputs, stream(0, "export")
    shape = (MAX_SAMPLES, *inputs.shape)
    if inputs.dtype == torch.uint8:
        return torch.randint(256, shape, generator=rng, dtype=torch.uint8), False
    return torch.randn(shape, generator=rng), False


def _difference(trained: TrainedClient, run: Compute, x: Tensor) -> float:
    """Return the largest difference between the logits of a file and those of the model.

    Compare a batch of inputs and a batch of one.
    """
    worst = torch.zeros(())
    for batch in (x, x[:1]):
        expected = trained.logits(batch)
        with torch.no_grad():
            difference = (run(batch) - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
        worst = torch.maximum(worst, difference)
    return float(worst)


class _RawToLogits(nn.Module):
    """The function from raw inputs to the logits that are evaluated."""

    def __init__(self, client: Client, method: Method) -> None:
        super().__init__()
        self.model, self.beside = client.model, client.modules
        self._client, self._method = client, method

    def forward(self, x: Tensor) -> Tensor:
        return self._method.logits(self._client, to_input(x))


def _trace(trained: TrainedClient) -> ExportedProgram:
    """Return the model as a graph, for any number of inputs.

    It is traced on zeros, because the file contains the traced inputs. Stack traces are removed,
    because they contain paths of this machine.
    """
    inputs = trained.inputs
    zeros = torch.zeros(2, *inputs.shape, dtype=inputs.dtype)
    module = _RawToLogits(trained.loaded.client, trained.loaded.method)
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
            tensor.fill_(torch.nan)  # the file lacks them: a method that needs them gives NaN
    return partial(logits_of, other, trained.loaded.method)


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
    assert program is not None, "export with `dynamo` returns a program"
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
    """Suppress warnings and logs of exporters, which the user cannot act on."""
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
    """Raise RunError for any exception of an exporter, which may not support a network."""
    try:
        yield
    except (ConfigError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"client {trained.number}: its network '{trained.network}' cannot be written as "
            f"{format_name}: {printable(one_line(error))}"
        ) from None
