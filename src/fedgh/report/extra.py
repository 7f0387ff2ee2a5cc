"""What the optional packages are, and what to say when they are not there."""

from importlib.util import find_spec

from fedgh.errors import ConfigError

PACKAGES = {
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "privacy": ("dp_accounting",),
    "report": ("altair", "vl_convert"),
    "tensorboard": ("tensorboard",),
}
"""What an extra of fedgh brings, by the names under which it is imported."""


def need(extra: str, what_for: str) -> None:
    """Refuse what the packages of an extra are needed for, unless they are installed."""
    if any(find_spec(package) is None for package in PACKAGES[extra]):
        raise ConfigError(f"{what_for} needs more packages: pip install 'fedgh[{extra}]'")


def need_report() -> None:
    """Refuse to make a page where Altair or its converter is not installed."""
    need("report", "a report")
