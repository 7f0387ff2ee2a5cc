"""FedGen (Zhu, Hong and Zhou, ICML 2021): its variant that shares only the header, Section 3.3.

The server trains a generator of representations that the clients' headers assign to the wanted
class, and averages the headers. Clients train their header on generated representations, too.
"""

from typing import Annotated

from pydantic import Field as Limits
from torch import Tensor, stack
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import Client, Payload, Task, Uploads, distill, generator, part, prefixed
from fedgh.methods.lg_fedavg import LGFedAvg


class FedGen(LGFedAvg):
    """A participant, new or not, gets header and generator; in round 1 the header alone."""

    name, family = "fedgen", "data-free distillation"
    about = "Averaged headers learn also from representations that a generator makes."
    up = api.HEADER + api.LabelCounts()
    down = api.OneOf(api.HEADER, api.HEADER + api.Named("gen.", api.Network("shared")))

    alpha: api.NonNegative = 1.0  # weight of generated representations; the code has 10
    beta: api.NonNegative = 0.0  # weight of distillation from them; the code has 10
    decay: api.Fraction = 1.0  # factor of alpha and beta after each round; the code has 0.98
    eta: api.NonNegative = 1.0  # weight of the diversity loss
    ensemble: generator.Ensemble = "losses"  # of headers: the code's, or the paper's "logits"
    server_steps: api.Count = 50  # of the generator in a round
    server_batch: Annotated[int, Limits(ge=2)] = 32  # generated representations in a step
    server_lr: api.Positive = 3e-4  # of Adam on the generator
    server_decay: api.Fraction = 0.98  # factor of this rate after each round
    noise: api.Count = 32  # random numbers that the generator reads
    hidden: api.Count = 256  # width of its hidden layer

    def shared_network(self, task: Task, state: Payload | None = None) -> generator.Representations:
        made = generator.of_representations(task, self.noise, self.hidden)
        api.load_network(made, api.network_state(made) | part(state or {}, "gen."))
        return made

    def sendable(self, server: Payload) -> Payload:
        return {name: tensor for name, tensor in server.items() if not name.startswith("adam.")}

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, rng = client.model, client.stream("generated")
        model.header.load_state_dict({name: down[name] for name in ("weight", "bias")})
        made = self.shared_network(client.task, down).to(client.device).eval()
        factor = self.decay ** (client.round - 1) if "gen.labels" in down else 0.0

        def loss(x: Tensor, y: Tensor) -> Tensor:
            logits, drawn = model(x), made.draw_labels(len(y), rng)
            of_drawn, of_own = (model.header(made.sample(each, rng)) for each in (drawn, y))
            labels, outputs = cross_entropy(of_drawn, drawn), distill(of_own, logits)
            return cross_entropy(logits, y) + factor * (self.alpha * labels + self.beta * outputs)

        api.train(client, loss)
        held = client.data.train.labels.bincount(minlength=client.task.num_classes)
        return {**api.network_state(model.header), "counts": held.int()}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        if not (sent := list(uploads)):
            return server
        headers, made = [each.payload for each in sent], self.shared_network(uploads.task, server)
        held = stack([header["counts"] for header in headers]).double()
        made.labels.copy_(held.sum(dim=0) / held.sum())
        how = self.ensemble, self.eta, self.server_batch, uploads.stream("generated")
        moments = api.learn(
            uploads,
            [made],
            lambda: generator.agreement_loss(made, headers, held, *how),
            self.server_steps,
            lr=self.server_lr * self.server_decay ** (uploads.round - 1),
            weight_decay=0.01,
            moments=part(server, "adam."),
        )
        mean = api.mean_by_examples(sent, if_none=server)
        after = {"weight": mean["weight"], "bias": mean["bias"], **prefixed("adam.", moments)}
        return {**after, **prefixed("gen.", api.network_state(made))}
