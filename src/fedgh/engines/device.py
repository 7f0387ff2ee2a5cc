"""The choice of the device that clients and server compute on: CPU or GPU."""

import os

import torch

from fedgh.errors import ConfigError


def find_device(name: str) -> torch.device:
    """Return the device with this name; `auto` is the fastest available device.

    Raise ConfigError if this machine has no such device.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(device for device, usable in available.items() if usable)
    if not available[name]:
        raise ConfigError(
            f"run.device: torch finds no '{name}' device on this machine; use 'cpu', or 'auto' for "
            "the fastest available device"
        )
    return repeatable(torch.device(name))


def repeatable(device: torch.device) -> torch.device:
    """Return the device; from now on this process computes the same bits on it in every run."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
    return device


def processes_for(device: torch.device, cores: int) -> int:
    """Return the number of worker processes for a device: one per core, or one per GPU."""
    if device.type == "cuda":
        return torch.cuda.device_count()
    return 1 if device.type == "mps" else cores


def device_of_worker(device: torch.device, worker: int) -> torch.device:
    """Return the device of the worker with this number: GPUs are assigned to workers in turn."""
    if device.type != "cuda":
        return device
    return torch.device("cuda", worker % torch.cuda.device_count())


def card_of(place: int) -> str:
    """Return the GPU of a process with this number, as CUDA_VISIBLE_DEVICES names it.

    The GPUs that this process may use are assigned in turn.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = allowed.split(",") if allowed else [*map(str, range(torch.cuda.device_count()))]
    return cards[place % len(cards)].strip()


def use_card(card: str) -> None:
    """Restrict this process, which has not used a GPU yet, to one GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = card
