"""Headers trained by autograd."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.core.types import Payload


def by_autograd(header: Payload, batches: list[tuple[Tensor, Tensor]], lr: float) -> Payload:
    """Return a header trained by plain SGD steps with autograd."""
    num_classes, rep_dim = header["weight"].shape
    layer = torch.nn.Linear(rep_dim, num_classes)
    layer.load_state_dict(header)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(layer(x), y.long()).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in layer.state_dict().items()}
