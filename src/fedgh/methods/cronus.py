"""Cronus (Chang, Shejwalkar, Shokri and Houmansadr, 2019): robust and heterogeneous collaboration.

Clients send their softmax outputs for public samples. The server takes a robust mean for each
sample. Clients train on private labels and on these soft labels of public samples together.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from torch import Tensor, arange, cat, linalg, quantile, stack
from torch.nn.functional import cross_entropy, one_hot

from fedgh.methods import api
from fedgh.methods.public_consensus import PublicConsensus, revisit


def robust_mean(x: Tensor, most: int) -> Tensor:
    """Return the mean of vectors [n, classes] without outliers, of which there are up to `most`.

    An outlier is the vector that is farthest from the median, along the direction in which they
    vary most, if its distance exceeds three standard deviations (estimated by the median) and 0.15.
    """
    for _ in range(most):
        along = x @ linalg.svd(x - x.mean(0), full_matrices=False).Vh[0]
        distance = (along - quantile(along, 0.5)).abs()
        if distance.max() <= 3 * (1.4826 * quantile(distance, 0.5)).clamp(min=0.05):
            break
        x = x[arange(len(x)) != distance.argmax()]
    return x.mean(0)


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
        rows = stack([upload.payload[self.kind].double() for upload in sent], dim=1)
        return {self.kind: stack([robust_mean(x, most) for x in rows]).float()}
