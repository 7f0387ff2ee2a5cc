"""Extractors by name: the paper's CNN-1 to CNN-5, ResNet-18, small ones, and a user's own."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedgh.core.rng import isolated
from fedgh.core.types import SplitModel, Task
from fedgh.errors import ConfigError, import_object, printable, unknown
from fedgh.models.cnn import CNN1, CNN2, CNN3, CNN4, CNN5
from fedgh.models.families import FAMILIES, LibraryExtractor
from fedgh.models.mlp import mlp, perceptron
from fedgh.models.resnet import resnet18
from fedgh.models.width import MAX_DENOMINATOR, read_width, takes_width

Extractor = Callable[[tuple[int, ...], int], nn.Module]
"""Function of the shape of one input and the width of the representation; returns a network."""

EXTRACTORS: dict[str, Extractor] = {
    "cnn1": CNN1,
    "cnn2": CNN2,
    "cnn3": CNN3,
    "cnn4": CNN4,
    "cnn5": CNN5,
    "resnet18": resnet18,
    "mlp": mlp,
    "perceptron": perceptron,
}


def extractor(name: str) -> Extractor:
    """Return the extractor of a name: of fedgh, `timm/resnet18`, or `package.module:function`.

    `@1/2` after the name makes a narrower network; extractors of fedgh allow that, and functions
    with a parameter `width`. Raise ConfigError for an unknown name.
    """
    library, slash, rest = name.partition("/")
    if slash and library in FAMILIES:  # names in these libraries, and folders, may contain an @
        return LibraryExtractor(library, rest)
    base, at, width = name.partition("@")
    return _narrower(base, width) if at else _full(base)


def is_packaged(name: str) -> bool:
    """Return True if a name, with or without a width, is that of a network of fedgh.

    Nothing is imported for this test.
    """
    if name.partition("@")[0] not in EXTRACTORS:
        return False
    try:
        extractor(name)
    except ConfigError:
        return False
    return True


def _full(name: str) -> Extractor:
    """Return the extractor of a name without a width."""
    if name in EXTRACTORS:
        return EXTRACTORS[name]
    if ":" not in name:
        raise ConfigError(
            f"{unknown('extractor', name, EXTRACTORS)} "
            "(write your own as 'package.module:function')"
        )
    function = import_object(name)
    if not callable(function):
        raise ConfigError(f"'{name}' is not a function")
    make: Extractor = function
    return make


def _narrower(name: str, text: str) -> Extractor:
    """Return the extractor of a name at the width in a text such as `1/2`."""
    width = read_width(text)
    if width is None:
        raise ConfigError(
            f"'{name}@{printable(text)}': write a width after the @, a fraction between 0 and 1 "
            f"such as 1/2 (denominator at most {MAX_DENOMINATOR})"
        )
    make: Callable[..., nn.Module] = _full(name)
    if not takes_width(make):
        raise ConfigError(f"'{name}' has no parameter `width`, so it cannot be '{name}@{text}'")
    return partial(make, width=width)


def split_model(make: Extractor, task: Task) -> SplitModel:
    """Return a network for this task: the extractor and a new linear header."""
    header = nn.Linear(task.rep_dim, task.num_classes)
    extractor = make(task.input_shape, task.rep_dim)
    if any(is_lazy(parameter) for parameter in extractor.parameters()):
        with torch.no_grad():  # lazy layers get their sizes from an input
            extractor.eval()(torch.zeros(2, *task.input_shape))
    return SplitModel(extractor, header)


def parameters_of(name: str, task: Task) -> int | None:
    """Return the number of parameters of a network of fedgh.

    Return None for other networks, and if the network does not fit the task.
    """
    if not is_packaged(name):
        return None
    try:
        with torch.device("meta"):  # counting needs no memory
            model = split_model(extractor(name), task)
    except Exception:  # layers raise many types for impossible sizes
        return None
    return sum(parameter.numel() for parameter in model.parameters())


def shared_model(name: str, task: Task, setting: str = "method.shared") -> SplitModel:
    """Return the initial shared network of a method, which all parties make from the seed.

    Raise ConfigError, which names the setting, if it cannot be made for this task.
    """
    with isolated(task.seed, "shared-model"):
        try:
            if not task.input_shape:
                raise ConfigError(
                    "all clients need inputs of one shape; set data.shape if data.name = 'private'"
                )
            return split_model(extractor(name), task)
        except ConfigError as error:
            raise ConfigError(f"{setting} = '{name}': {error}") from None


def shared_layers(task: Task, *widths: int) -> nn.Sequential:
    """Linear layers from width to width, with ReLUs between them, at a start that all know."""
    with isolated(task.seed, "shared-layers"):
        layers = [nn.Linear(before, after) for before, after in pairwise(widths)]
    between: list[nn.Module] = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*between[:-1])


def check_extractor(name: str, make: Extractor, task: Task) -> None:
    """Raise ConfigError unless an extractor maps the task's inputs to `rep_dim` numbers."""
    shape, width = task.input_shape, task.rep_dim
    try:
        with isolated(task.seed, "check-extractor"), torch.inference_mode():
            model = split_model(make, task)
            out = model.eval().represent(torch.zeros(2, *shape))
    except ConfigError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise ConfigError(
            f"'{name}' fails on inputs of shape {shape}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(out, torch.Tensor) or tuple(out.shape) != (2, width):
        got = f"shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out)}"
        raise ConfigError(
            f"'{name}' maps 2 inputs to {got}, but model.rep_dim = {width} asks for (2, {width})"
        )
