"""FedMD (Li and Wang, 2019): heterogeneous federated learning by model distillation.

Clients send their logits for public samples. Each first moves its own logits towards the mean of
all ("digest"), and then trains on its private data again ("revisit").
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from fedgh.methods import api
from fedgh.methods.public_consensus import PublicConsensus, digest, revisit


class FedMD(PublicConsensus):
    """A participant, new or not, digests the last mean; before, it may train on public labels."""

    about = "Clients learn the mean logits of all clients for public samples."
    sums_suffice = True

    digest_epochs: api.Count = 1  # passes over the public samples of a round
    digest_batch: api.Several = 256  # public samples in a step
    digest_lr: api.Positive = 0.1  # for `local.optimizer`; the authors' Adam has 0.001
    pretrain_epochs: Annotated[int, Field(ge=0)] = 0  # on labels of public data, in its first round

    @property
    def public_labels(self) -> bool:  # type: ignore[override]
        """True if clients begin with the labels of public data."""
        return self.pretrain_epochs > 0

    def fit(self, client: api.Client, samples: api.Examples, targets: Tensor | None) -> None:
        if not client.memory:  # its first round
            api.train(
                client,
                lambda x, y: cross_entropy(client.model(x), y),
                on=client.public,
                epochs=self.pretrain_epochs,
                batch_size=self.digest_batch,
                stream="pretrain",
                metric="pretrain_loss",
            )
        if targets is not None:
            how = self.digest_epochs, self.digest_batch, self.digest_lr
            digest(client, samples, targets, l1_loss, *how)
        revisit(client)
