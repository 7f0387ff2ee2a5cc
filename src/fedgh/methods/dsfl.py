"""DS-FL (Itahara, Nishio, Koda, Morikura and Yamamoto, IEEE Transactions on Mobile Computing 2021).

Distillation-based semi-supervised federated learning: clients send their softmax outputs for
public samples, and learn the mean of all after it was sharpened (entropy reduction aggregation).
"""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.public_consensus import PublicConsensus, digest, revisit


class DSFL(PublicConsensus):
    """A participant, new or not, first learns the last sharpened mean."""

    about = "Clients learn the sharpened mean outputs of all clients for public samples."
    kind = "probabilities"

    per_round: api.Several = 1000  # public samples of a round; all, if there are not more
    sharpen: Literal["era", "power", "none"] = "era"  # of the mean: softmax(p / T), p^beta, or p
    temperature: api.Positive = 0.1  # T of "era"; with 100 classes take 0.05
    beta: api.Positive = 2.0  # exponent of "power"
    digest_epochs: api.Count = 5  # passes over the public samples of a round
    digest_batch: api.Several = 100  # public samples in a step
    digest_lr: api.Positive = 0.1  # on public samples; with `local.momentum` 0.9 take 0.01

    def fit(self, client: api.Client, samples: api.Examples, targets: Tensor | None) -> None:
        if targets is not None:
            how = self.digest_epochs, self.digest_batch, self.digest_lr
            digest(client, samples, targets, cross_entropy, *how)
        revisit(client)

    def combine(self, uploads: Iterable[api.Upload]) -> api.Payload:
        mean = super().combine(uploads)
        return {name: self.sharpened(rows) for name, rows in mean.items()}

    def sharpened(self, p: Tensor) -> Tensor:
        """Return these distributions with less entropy (with "era" not always)."""
        if self.sharpen == "era":
            return (p / self.temperature).softmax(1)
        if self.sharpen == "power":
            return (self.beta * p.clamp(min=1e-30).log()).softmax(1)  # p^beta, of any size
        return p
