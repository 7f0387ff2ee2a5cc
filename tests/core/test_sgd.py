"""SGD: the same bits as torch.optim.SGD, without the import of PyTorch's compiler."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from fedgh.core.sgd import SGD


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 5e-4)])
def test_steps_have_the_bits_of_torch(momentum: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    theirs.load_state_dict(ours.state_dict())
    expected = torch.optim.SGD(
        theirs.parameters(), 0.1, momentum, weight_decay=weight_decay, fused=True
    )
    own = SGD(list(ours.parameters()), 0.1, momentum, weight_decay)
    for number in range(5):
        x = torch.randn(4, 7)
        for network, optimizer in ((ours, own), (theirs, expected)):
            optimizer.zero_grad()
            network(x).square().sum().backward()
            if number == 2:  # a parameter without a gradient keeps its value
                network.bias.grad = None
            optimizer.step()
        assert ours.weight.equal(theirs.weight)
        assert ours.bias.equal(theirs.bias)


def test_training_does_not_import_the_compiler() -> None:
    code = """
import sys
from pathlib import Path
from fedgh.core.types import Job
from fedgh.core import wire
from fedgh.engines.host import ClientHost
from fedgh.runs.checkpoint import ClientFiles
from tests.support.tiny import quick
experiment = quick()
host = ClientHost(experiment.blueprint(), ClientFiles(Path(), 0))
assert host.run(Job(0, 1, wire.to_bytes(experiment.initial_server()), evaluate=True)).up
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
