"""Where clients compute: the processor, or a graphics card where there is one."""

import torch

from fedgh.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The device of that name; `auto` is the fastest there is."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(device for device, usable in there.items() if usable)
    if not there[name]:
        raise ConfigError(
            f"run.device: torch finds no '{name}' device here; use 'cpu', or 'auto' for the best "
            "there is"
        )
    return torch.device(name)


def processes_for(device: torch.device, cores: int) -> int:
    """How many worker processes suit a device: one a core, or one a graphics card."""
    if device.type == "cuda":
        return torch.cuda.device_count()
    return 1 if device.type == "mps" else cores


def share_of(device: torch.device, worker: int) -> torch.device:
    """The device of one worker: several graphics cards are dealt round-robin."""
    if device.type != "cuda":
        return device
    return torch.device("cuda", worker % torch.cuda.device_count())
