"""FedKEMF, knowledge extraction and multi-model fusion (Yu, Qian and Jannesari, 2022).

Clients do as in FML: a private network and a small shared one teach each other. The server distils
the ensemble of the shared networks into one, on unlabelled public data.
"""

from typing import Literal

import torch
from torch import Tensor

from fedgh.methods import api
from fedgh.methods.api import Payload, Uploads
from fedgh.methods.feddf import Steps, distil
from fedgh.methods.fml import FML


class FedKEMF(FML):
    """A participant starts each round from the global shared network, also in its first round."""

    family = "public data on the server"
    about = "FML, but the server distils the small networks' ensemble instead of averaging."
    public_for = "server"

    ensemble: Literal["mean", "max"] = "mean"  # of probabilities; or the largest logits
    start: Literal["last", "mean"] = "last"  # distil into the last global network, or the average
    server_steps: Steps = 300  # of the server in a round
    server_batch: api.Several = 64  # public samples in a step
    server_lr: api.Positive = 0.001  # of Adam; falls to zero over the steps of a round

    def joined(self, ensemble: Tensor | None, logits: Tensor) -> Tensor:
        """Return an ensemble's logits after another network has joined it."""
        if self.ensemble == "max":
            return logits if ensemble is None else torch.maximum(ensemble, logits)
        logits = logits.log_softmax(1)  # its exponentials are summed; softmax makes that a mean
        return logits if ensemble is None else torch.logaddexp(ensemble, logits)

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        net = self.shared_network(uploads.task).to(uploads.device)
        mean, ensemble = api.WeightedMean(), None
        for upload in uploads:
            logits = api.public_outputs(uploads, api.load_network(net, upload.payload))
            if logits is not None:
                mean.add(upload.payload, upload.num_examples)
                ensemble = self.joined(ensemble, logits)
        if ensemble is None:
            return server
        api.load_network(net, server if self.start == "last" else mean.value(if_none={}))
        distil(uploads, ensemble, [net], self.server_steps, self.server_batch, self.server_lr)
        return api.network_state(net)
