"""Cronus (Chang, Shejwalkar, Shokri and Houmansadr, 2019): robust and heterogeneous collaboration.

Clients send their softmax outputs for public samples. The server takes a robust mean for each
sample. Clients train on private labels and on these soft labels of public samples together.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from torch import Tensor, arange, cat, linalg, stack
from torch.nn.functional import cross_entropy, normalize, one_hot

from fedgh.methods import api
from fedgh.methods.public_consensus import PublicConsensus, revisit

BLOCK = 256
"""Samples whose robust means are computed together: more would need more memory."""


def robust_means(x: Tensor, most: int) -> Tensor:
    """Return the mean of each sample's vectors [samples, n, classes], without up to `most` of them.

    Removed is the vector that is farthest from the median, along the direction in which they vary
    most, if its distance exceeds three standard deviations (estimated by the median) and 0.15.
    """
    means, rows = x.mean(1), arange(len(x))
    for _ in range(most):
        along = (x @ main_direction(x)[:, :, None])[:, :, 0]
        distance = (along - along.quantile(0.5, dim=1, keepdim=True)).abs()
        limit = 3 * (1.4826 * distance.quantile(0.5, dim=1)).clamp(min=0.05)
        far = distance.max(1).values > limit
        if not far.any():
            break
        others = arange(x.shape[1]) != distance.argmax(1, keepdim=True)
        x, rows = x[far[:, None] & others].view(-1, x.shape[1] - 1, x.shape[2]), rows[far]
        means[rows] = x.mean(1)
    return means


def main_direction(x: Tensor) -> Tensor:
    """Return unit vectors [samples, classes], along which x [samples, n, classes] varies most."""
    x = x - x.mean(1, keepdim=True)
    many = x.shape[1] >= x.shape[2]
    largest = linalg.eigh(x.mT @ x if many else x @ x.mT).eigenvectors[:, :, -1:]
    return normalize((largest if many else x.mT @ largest)[:, :, 0])


class Cronus(PublicConsensus):
    """A client trains alone in its first round, and with the last robust mean in later ones."""

    about = "Clients train on a robust mean of their outputs for public samples, too."
    kind = "probabilities"

    epsilon: Annotated[float, Field(ge=0, lt=0.5)] = 0.2  # largest share of outliers; 0: the mean

    def fit(self, client: api.Client, samples: api.Examples, targets: Tensor | None) -> None:
        if targets is None or not client.memory:
            revisit(client)
            return
        train, classes = client.data.train, client.task.num_classes
        both = cat([each.x[each.index] for each in (train, samples)])
        soft = cat([one_hot(train.labels, classes).to(targets), targets])

        def loss(x: Tensor, row: Tensor) -> Tensor:
            return cross_entropy(client.model(x), soft[row])

        api.train(client, loss, on=api.numbered(api.unlabelled(both)))

    def combine(self, uploads: Iterable[api.Upload]) -> api.Payload:
        sent = list(uploads)
        most = int(self.epsilon * len(sent) + 1e-9)  # 0.29 * 100 is 28.999...
        if not most:
            return super().combine(sent)
        blocks = zip(*(upload.payload[self.kind].split(BLOCK) for upload in sent), strict=True)
        means = [robust_means(stack(block, dim=1).double(), most) for block in blocks]
        return {self.kind: cat(means).float()}
