"""The machine that a benchmark runs on, and its kind."""

import os
import platform
import re
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
        """The name of machines that are compared, such as `amd-epyc-avx512-2-cores`.

        It contains the processor, because matrix products and memory do not have the same ratio of
        speeds in two processors with the same instructions.
        """
        model = re.sub(r"\(.*?\)|@.*|\b(processor|cpu)\b", " ", self.processor.lower())
        cores = "core" if self.cores == 1 else "cores"
        words = f"{model} {self.instruction_set.lower()} {self.cores} {cores}"
        return "-".join(re.findall("[a-z0-9]+", words))


def this_machine() -> Machine:
    """Return the description of the machine that this process runs on."""
    return Machine(
        processor=processor(),
        instruction_set=get_cpu_capability(),
        cores=available_cores(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB,
        system=platform.platform(),
    )
