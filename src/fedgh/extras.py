"""What the optional packages are, and what to say when they are not there."""

from importlib.util import find_spec

from fedgh.errors import ConfigError

PACKAGES = {
    "mlflow": ("mlflow",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "privacy": ("dp_accounting",),
    "report": ("altair", "vl_convert"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
}
"""What an extra of fedgh brings, by the names under which it is imported."""


def install(extra: str) -> str:
    """Say how an extra is installed: from a checkout, since no index has fedgh."""
    return f"in a checkout of fedgh: pip install '.[{extra}]'"


def need(extra: str, what_for: str) -> None:
    """Refuse what the packages of an extra are needed for, unless they are installed."""
    if any(find_spec(package) is None for package in PACKAGES[extra]):
        raise ConfigError(f"{what_for} needs more packages; {install(extra)}")


def need_report() -> None:
    """Refuse to make a page where Altair or its converter is not installed."""
    need("report", "a report")
