"""The machine that a benchmark runs on, and its kind."""

import os
import platform
from dataclasses import dataclass

from torch.backends.cpu import get_cpu_capability

from fedgh.engines.workers import available_cores
from fedgh.runs.summary import processor

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """A machine, as far as it determines the speed of the benchmark."""

    processor: str
    instruction_set: str
    cores: int  # that may be used
    memory_gib: float
    system: str

    @property
    def kind(self) -> str:
        """The name of machines that are compared with each other, such as `avx512-2-cores`."""
        name = self.instruction_set.lower().replace(" ", "-")
        return f"{name}-{self.cores}-{'core' if self.cores == 1 else 'cores'}"


def this_machine() -> Machine:
    """Return the description of the machine that this process runs on."""
    return Machine(
        processor=processor(),
        instruction_set=get_cpu_capability(),
        cores=available_cores(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB,
        system=platform.platform(),
    )
