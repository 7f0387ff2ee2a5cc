"""The optional packages of fedgh, and the error when one is not installed."""

from importlib.util import find_spec

from fedgh.errors import ConfigError

PACKAGES = {
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "privacy": ("dp_accounting",),
    "report": ("altair", "vl_convert"),
    "secure": ("cryptography",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}
"""Packages that each extra of fedgh installs, by the names under which they are imported."""


def install(extra: str) -> str:
    """Return how to install an extra: from a checkout, since fedgh is on no package index."""
    return f"in a checkout of fedgh: pip install '.[{extra}]'"


def need(extra: str, what_for: str) -> None:
    """Raise ConfigError if a package of the extra is not installed; `what_for` names its use."""
    if any(find_spec(package) is None for package in PACKAGES[extra]):
        raise ConfigError(f"{what_for} needs more packages; {install(extra)}")


def need_report() -> None:
    """Raise ConfigError if a package that reports need is not installed."""
    need("report", "a report")
