"""FedHeNN, architecture-agnostic learning (Makhija, Han, Ho and Ghosh, ICML 2022).

Clients compare how similar public samples are *to each other* in their representations: a kernel
[l, l], whatever the network. A client's kernel is pulled towards the mean kernel of all.
"""

from math import sqrt
from typing import Literal

from torch import Generator, Tensor, cat, float32
from torch.nn.functional import cross_entropy

from fedgh.methods import api
from fedgh.methods.api import CLOCK, Client, Payload


def normalised(kernel: Tensor) -> Tensor:
    """Return J K J, J = I - 1/l, with the norm 1; zeros if all representations are equal."""
    k = kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
    unit: Tensor = k / k.norm().clamp(min=1e-9)
    return unit


def cka(one: Tensor, other: Tensor) -> Tensor:
    """Return the centred kernel alignment of two kernels: 1 if they are alike, 0 if unrelated."""
    return (normalised(one) * normalised(other)).sum()


def kernel_spec(method: api.Method, shapes: api.Shapes) -> api.Spec:
    """Return the spec of a kernel of the public samples of a round."""
    assert isinstance(method, FedHeNN)
    side = min(method.samples, shapes.task.public_size)
    return {"kernel": api.Field(float32, (side, side))}


class FedHeNN(api.Method):
    """Every participant gets the last round's mean kernel; in the first round there is none."""

    family, public_for = "public data on clients", "all"
    about = "Similarities between public samples are pulled towards the mean of all clients."
    up = api.Own(kernel_spec, about="a kernel of public samples")
    down = api.OneOf(CLOCK, CLOCK + up)

    eta: api.NonNegative = 0.01  # weight of the kernels in round 2; it grows with sqrt(rounds)
    samples: api.Several = 256  # l: public samples of a round; the code has 1000
    per_step: api.Several = 256  # of these, in a step: each costs as much as a private sample
    raw: bool = False  # kernels are neither centred nor divided by their norm, as in the code
    learn_from: Literal["all", "own"] = "all"  # "own" is the control: its own last kernel

    def init_server(self, task: api.Task, models: api.Models, rng: Generator) -> Payload:
        return api.start_clock()

    def client_update(self, client: Client, down: Payload) -> Payload:
        model, clock = client.model, int(down["clock"])
        told = down if self.learn_from == "all" else client.memory
        on = api.public_draw(client.public, client.task, int(told.get("clock", 0)), self.samples)
        drawn = api.forever(api.numbered(on), self.per_step, client.stream("public"), client.device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            if "kernel" not in told:
                return cross_entropy(model(x), y)
            shown, rows = next(drawn)
            # In one batch: batch normalisation then evaluates with statistics that it trained with.
            r, h = model.represent(cat([x, shown])).split((len(y), len(rows)))
            distance = 1 - cka(told["kernel"][rows][:, rows], h @ h.T)
            return cross_entropy(model.header(r), y) + self.eta * sqrt(clock) * distance

        api.train(client, loss)
        on = api.public_draw(client.public, client.task, clock + 1, self.samples)
        h = api.outputs(client, model.represent, on).double()
        upload = {"kernel": (h @ h.T if self.raw else normalised(h @ h.T)).float()}
        api.remember(client, upload if self.learn_from == "own" else {}, clock + 1)
        return upload

    def check_upload(self, task: api.Task, payload: Payload, max_norm: float) -> None:
        k, norm = payload["kernel"].double(), float(payload["kernel"].norm())
        if norm > 1 + 1e-3 and not self.raw:
            raise api.WireError(f"'kernel' has the norm {norm:.4g}, above 1")
        if max((k - k.T).abs().max(), -k.diagonal().min()) > 1e-4 * max(1.0, norm):
            raise api.WireError("'kernel' is not symmetric, or has a negative diagonal")

    def server_update(self, server: Payload, uploads: api.Uploads) -> Payload:
        return api.next_mean(server, uploads)
