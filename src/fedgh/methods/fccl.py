"""FCCL, learn from others and be yourself (Huang, Ye and Du, CVPR 2022).

Over public samples, a client's logits of a class shall correlate with the mean logits of that
class, and oppose those of other classes. Against forgetting, it also learns from two frozen
networks of its own: from before its first round, and from the end of its last one.
"""

from copy import deepcopy
from typing import Literal

from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import CLOCK, Client, Payload, distill


class FCCL(api.Method):
    """A client trains alone before its first round; all get the mean of the last round."""

    family, public_for = "public data on clients", "all"
    about = "Logits of public samples correlate, class by class, with the mean of all clients."
    up = api.PublicOutputs(samples="per_round")
    down = api.OneOf(CLOCK, CLOCK + up)

    lam: api.NonNegative = 0.0051  # weight of pairs of different classes
    pretrain_epochs: api.Count = 40  # once, before a client's first round: extra local work
    per_round: api.Several = 5000  # public samples of a round; all, if there are not more
    public_epochs: api.Count = 1  # passes over them
    public_batch: api.Several = 512  # samples over which logits are correlated
    public_lr: api.Positive = 0.001  # of Adam on public samples
    learn_from: Literal["all", "own"] = "all"  # "own" is the control: its own last logits

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.start_clock()

    def init_client(self, client: Client) -> None:
        client.modules["first"] = deepcopy(client.model)

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, first = client.model, client.modules["first"]
        told, number = down if self.learn_from == "all" else client.memory, int(down["clock"]) + 1

        def alone(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        def agree(x: Tensor, row: Tensor) -> Tensor:
            return self.correlation_loss(model(x), told["logits"][row])

        def not_forget(x: Tensor, y: Tensor) -> Tensor:
            z = model(x)
            return cross_entropy(z, y) + distill(last(x), z) + distill(first(x), z)

        if "clock" not in client.memory:
            epochs = self.pretrain_epochs
            api.train(client, alone, epochs=epochs, stream="pretrain", metric="pretrain_loss")
            first.load_state_dict(model.state_dict())
        last = deepcopy(model).eval().requires_grad_(False)
        if "logits" in told:
            on = api.public_draw(client.public, client.task, int(told["clock"]), self.per_round)
            n, size, lr = self.public_epochs, self.public_batch, self.public_lr
            api.train_public(client, agree, on, epochs=n, batch_size=size, lr=lr, optimizer="adam")
        api.train(client, not_forget)
        on = api.public_draw(client.public, client.task, number, self.per_round)
        upload = {"logits": api.outputs(client, model, on)}
        api.remember(client, upload if self.learn_from == "own" else {}, number)
        return upload

    def correlation_loss(self, own: Tensor, mean: Tensor) -> Tensor:
        """Return the squared distances of correlations from 1 (same class) and -1 (others)."""
        # The code divides by B - 1 in std, then by B. 1e-5: a column may be constant over a batch.
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (own, mean))
        m = a.T @ b / len(own)
        same, opposed = (1 - m.diagonal()).square(), (1 + m).square()
        return same.sum() + self.lam * (opposed.sum() - opposed.diagonal().sum())

    def server_update(self, server: Payload, uploads: api.Uploads) -> Payload:
        return api.next_mean(server, uploads)
