"""FedGH+: an exact header from sums of all clients, fused with each client's own network.

The FedGH paper names two open directions: a class statistic that loses less than the mean, and a
fusion of the global header with a personal one. In FedGH+ all clients have the same fixed feature
map ψ. A client sends, once, the counts, class sums and second moment of ψ over its training
samples; the server adds them up and solves the header exactly, as if it had all samples. Each
client trains its own network alone, and predicts with both.

The header follows Fed3R (Fanì et al., ICML 2024; `header = "ridge"`), AFL (He et al., CVPR 2025)
and the Gaussian heads of Turazza et al. (ICLR 2026). These use one pre-trained network for all
clients and no networks of their own.

server                                          client k
  add up (n, B, M)         ◀── once ─────────   n_s, B_s = Σ ψ(x) for each class, M = Σ ψ(x) ψ(x)ᵀ
  W = S'⁻¹ μ, b            ── if changed ───▶   train the own network alone
  losses of each (p, g)    ◀── every round ─▶   predict by p · network + g · header
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedgh.core import fusion, private_moments, wire
from fedgh.core.batches import in_order
from fedgh.core.class_table import weighted_means
from fedgh.core.feature_header import HeaderKind, header_logits, solve, solve_with_own_covariance
from fedgh.core.local import class_statistics, outputs, train
from fedgh.core.message import NOTHING, Message, OneOf, Own, Shapes, Sharing, for_each_class
from fedgh.core.method import RELEASE, Method, Models
from fedgh.core.moment_totals import MomentTotals
from fedgh.core.moments import MAX_SAMPLES, Moments, unit
from fedgh.core.names import Names
from fedgh.core.sums import ClassTotals, Scale, Summation
from fedgh.core.types import (
    CPU,
    Client,
    Examples,
    Payload,
    Recipient,
    Task,
    moved,
    part,
    prefixed,
)
from fedgh.core.uploads import Uploads
from fedgh.errors import ConfigError, MethodError, WireError
from fedgh.models.features import feature_map, fingerprint

MAX_MEAN_NORM = 1 + 1e-5
"""Norm of a mean of unit vectors, rounding included."""

LOSSES = wire.Field(
    torch.float32,
    (wire.Dim("tables", 1), len(fusion.PAIRS)),
    at_least=0,
    at_most=fusion.MAX_LOSS,
)
MAX_STATISTICS = 2**33
"""Bytes of all clients' statistics, which the server keeps and writes to checkpoints."""

PER_CLIENT = ("losses", "voted", "given", "known")
"""Tensors of the server's state with a row for each client."""


@dataclass(frozen=True)
class Statistics(Message):
    """An upload with statistics of zero or more classes, and at most one row of losses."""

    kind: Literal["moments", "class means"]
    feature_dim: int

    @property
    def text(self) -> str:
        return f"{self.kind} of fixed features, losses"

    @property
    def shares(self) -> Sharing:
        return self.kind

    @property
    def max_norm(self) -> float:
        return 1.0  # feature vectors are scaled to norm 1

    @property
    def names_classes(self) -> bool:
        return True

    @property
    def keeps_release(self) -> bool:
        return True

    def specs(self, method: Method, shapes: Shapes) -> list[wire.Spec]:
        if self.kind == "moments":
            return [{**Moments.spec(shapes.task, self.feature_dim), "losses": LOSSES}]
        means = wire.Field(torch.float32, (self.feature_dim,))
        counts = wire.Field(torch.int32, (), at_least=1)
        return [{**for_each_class(shapes.task, means=means, counts=counts), "losses": LOSSES}]

    def summation(self, method: Method, shapes: Shapes, scale: Scale) -> Summation:
        kind = MomentTotals if self.kind == "moments" else ClassTotals
        return kind(shapes.task.num_classes, self.feature_dim, scale)


class FedGHPlus(Method):
    """`statistics = "own"` shares nothing: a control that shows the part of the federation."""

    family = "statistics"
    about = "The server solves a header from summed statistics; clients fuse it with their network."
    name = "fedgh_plus"
    accepts_newcomers = releases_once = sums_suffice = True

    features: Annotated[str, Names.FEATURES] = "auto"  # conv, relu, or the name of a network
    feature_dim: Annotated[int, Field(ge=8)] = 512  # width of feature vectors
    weights: Annotated[str, Names.PATH] = ""  # a safetensors file for a named network
    statistics: Literal["shared", "own"] = "shared"  # of all clients' samples, or the own ones
    covariance: Literal["shared", "own"] = "shared"  # "own" sends class means and counts alone
    header: HeaderKind = "gaussian"  # how it is solved; "ridge" as in Fed3R
    shrinkage: Annotated[float, Field(gt=0)] = 0.5  # of the covariance, times dimensions / samples

    @property
    def up(self) -> Message:  # type: ignore[override]
        """The declaration of uploads, which depends on the settings."""
        if self.statistics == "own":
            return NOTHING
        kind: Literal["moments", "class means"] = (
            "moments" if self.covariance == "shared" else "class means"
        )
        return Statistics(kind, self.feature_dim)

    @property
    def down(self) -> Message:  # type: ignore[override]
        """The declaration of downloads: digest of the map, request, median losses, new header."""
        if self.statistics == "own":
            return NOTHING
        always = {
            "map": wire.Field(torch.uint8, (8,)),
            "wanted": wire.Field(torch.bool, (1,)),
            "losses": LOSSES,
        }
        row, number = (wire.Field(torch.float32, shape) for shape in ((self.feature_dim,), ()))
        rows = {"means": row} if self.covariance == "own" else {"weight": row, "bias": number}
        with_header = Own(
            lambda _, shapes: {**always, **for_each_class(shapes.task, **rows)},
            about="header and losses",
        )
        return OneOf(Own(lambda *_: always, about="losses"), with_header)

    def init_server(self, task: Task, models: Models, rng: torch.Generator) -> Payload:
        """Return the state without samples.

        `version` is the number of the header; `known` is the version that each client has.
        """
        if self.header == "ridge" and self.covariance == "own":
            raise ConfigError("method.header = 'ridge' needs method.covariance = 'shared'")
        digest = fingerprint(self._map(task))
        if self.shares == "nothing":
            return {}
        header = {
            "map": digest,
            **prefixed("sum.", vars(Moments.zero(task.num_classes, self.feature_dim))),
            "version": torch.tensor(0),
        }
        if task.secure:
            if task.privacy is not None:
                raise ConfigError(
                    f"{self.name} has privacy or secure aggregation, not both: the server does not "
                    "know the noise of a sum; set privacy.protects = 'nothing' or secure.enabled = "
                    "false"
                )
            return header
        (spec,) = self.up.specs(self, Shapes(task, lambda: models[0]))
        size = task.num_clients * wire.max_bytes(spec)
        if size > MAX_STATISTICS:
            raise ConfigError(
                f"the server would keep up to {size / 2**30:.0f} GiB of statistics; lower "
                "method.feature_dim, or set method.covariance = 'own'"
            )
        return {
            **header,
            "noise": private_moments.noise_terms(task.privacy),
            "losses": torch.zeros(task.num_clients, len(fusion.PAIRS)),
            "voted": torch.zeros(task.num_clients, dtype=torch.bool),
            "given": torch.zeros(task.num_clients, dtype=torch.bool),
            "known": torch.zeros(task.num_clients, dtype=torch.int64),
        }

    def broadcast(self, server: Payload, to: Recipient) -> Payload:
        """Return median losses, a request for statistics, and the header if the client lacks it."""
        if self.shares == "nothing":
            return {}
        if _summed(server):
            wanted = (server["version"] == 0)[None]
            none = torch.zeros(0, len(fusion.PAIRS))
            return {"map": server["map"], "wanted": wanted, "losses": none} | part(
                server, "header."
            )
        voted = server["voted"]
        down = {
            "map": server["map"],
            "wanted": ~server["given"][to.id : to.id + 1],
            # Malicious clients influence the median less than the mean.
            "losses": server["losses"][voted].quantile(0.5, dim=0)[None]
            if bool(voted.any())
            else server["losses"][:0],
        }
        if server["known"][to.id] == server["version"]:
            return down
        return down | part(server, "header.")

    def sendable(self, server: Payload) -> Payload:
        """Return the header, also while every client has it."""
        return part(server, "header.")

    def client_update(self, client: Client, down: Payload) -> Payload:
        """Train the own network alone; return losses, and statistics if they are requested."""
        train(client, lambda x, y: cross_entropy(client.model(x), y))
        up = self.refresh(client, down)
        return up | self._statistics(client) if down.get("wanted") else up

    def refresh(self, client: Client, down: Payload) -> Payload:
        """Take over the header and choose its weight; return losses without statistics."""
        header = self._header(client, down)
        if header:
            client.memory.update(moved(header, client.device))
        losses = self._weigh(client, down)
        if self.shares == "nothing":
            return {}
        none = Moments.zero(client.task.num_classes, self.feature_dim)
        rows = none.payload() if self.shares == "moments" else none.as_means()
        return {**rows, "losses": losses}

    def server_update(self, server: Payload, uploads: Uploads) -> Payload:
        """Add new statistics, and solve the header again if there are any."""
        if self.shares == "nothing":
            return server
        if _summed(server):
            return self._solved_once(server, uploads)
        after = server | {name: server[name].clone() for name in PER_CLIENT}
        changed = False
        for upload in uploads:
            number, statistics = upload.client_id, dict(upload.payload)
            losses = statistics.pop("losses")
            after["known"][number] = server["version"]
            if len(losses):
                after["losses"][number] = losses[0]
                after["voted"][number] = True
            if len(statistics["classes"]) and not server["given"][number]:
                after = self._added(after, number, statistics)
                changed = True
        return self._solved(after) if changed else after

    def forget(self, server: Payload, client_id: int) -> Payload:
        """Return the server's state as if the client had never sent an upload."""
        if self.shares == "nothing":
            return server
        if _summed(server):
            raise MethodError(
                f"{self.name} cannot forget a client of a run with secure aggregation: the server "
                "knows only the sum of all statistics"
            )
        prefix = f"client.{client_id}."
        statistics, total = part(server, prefix), Moments(**part(server, "sum."))
        if statistics and self.shares == "moments":
            total = total - Moments.read(statistics, len(server["sum.counts"]))
        rest = {name: t for name, t in server.items() if not name.startswith(prefix)}
        rows = {name: server[name].clone() for name in PER_CLIENT}
        for tensor in rows.values():
            tensor[client_id] = 0
        return self._solved({**rest, **rows, **prefixed("sum.", vars(total))})

    def enlarged(self, server: Payload) -> Payload:
        """Return the server's state with a row for one more client."""
        rows = {name: server[name] for name in PER_CLIENT if name in server}
        more = {name: torch.cat([t, torch.zeros_like(t[:1])]) for name, t in rows.items()}
        return server | more

    def logits(self, client: Client, x: Tensor) -> Tensor:
        """Return the fused logits over the client's own classes; other classes are excluded."""
        if "pair" not in client.memory:
            return super().logits(client, x)
        return self._fused(client, x, self._header_logits(client, x))

    def global_logits(self, client: Client, x: Tensor) -> Tensor:
        """Return logits of all classes: the header decides between own classes and others."""
        if "pair" not in client.memory:
            return super().global_logits(client, x)
        header = self._header_logits(client, x)
        return fusion.all_classes(self._fused(client, x, header), header, client.memory["own"])

    def averaged(self, client: Client) -> Callable[[Tensor], Tensor] | None:
        """Return the function to unit feature vectors, the same for all clients."""
        features = self._map(client.task)
        return None if self.shares == "nothing" else lambda x: unit(features(x.cpu().double()))

    def check_upload(self, task: Task, payload: Payload, max_norm: float) -> None:
        """Raise WireError for statistics that no samples can have."""
        if self.shares == "nothing" or not len(payload["classes"]):
            return
        if self.shares == "moments":
            moments = Moments.read(payload, task.num_classes)
            if task.privacy:
                private_moments.check(moments, task.privacy)
            else:
                moments.check(MAX_SAMPLES * (task.num_clients if task.secure else 1))
        elif bool((payload["means"].norm(dim=1) > MAX_MEAN_NORM).any()):
            raise WireError("'means' has a row of norm above 1, which no mean of unit vectors has")

    def will_release(self, client: Client) -> bool:
        """Return True if the client has not released its statistics yet."""
        return not part(client.memory, RELEASE)

    def _map(self, task: Task, device: torch.device = CPU) -> nn.Module:
        """Return ψ. Raise ConfigError if it is impossible for these names and inputs."""
        arguments = (self.features, self.weights, self.feature_dim, task.input_shape, task.seed)
        try:
            return feature_map(*arguments, device)
        except ConfigError as error:
            raise ConfigError(f"method.features = '{self.features}': {error}") from None

    def _moments(self, client: Client, label: int | None = None) -> Moments:
        """Return the exact moments of the training samples, of one class or of all."""
        features, task, train = self._map(client.task), client.task, client.data.train
        rows = train.index if label is None else train.index[train.labels == label]
        total = Moments.zero(task.num_classes, self.feature_dim)
        with client.timed("summarise"), torch.no_grad():
            for x, y in in_order(Examples(train.x, train.y, rows)):
                total += Moments.of(features(x.double()), y, task.num_classes)
        return total

    def _statistics(self, client: Client) -> Payload:
        """Return the client's statistics.

        With privacy they are stored, so that the client sends the same numbers when it is asked
        again.
        """
        classes, privacy = client.task.num_classes, client.privacy
        stored = part(client.memory, RELEASE)
        if stored:
            return moved(stored, CPU)
        if self.shares == "class means":
            sent = class_statistics(client, self.averaged(client), self.up.max_norm)
        elif privacy is None:
            sent = self._moments(client).payload()
        else:
            labels = client.data.train.labels.unique().tolist()
            own = {label: self._moments(client, label) for label in labels}
            normal = privacy.normal(client.stream("privacy"))
            sent = private_moments.release(own, classes, privacy, normal).payload()
        if privacy is not None:
            client.memory.update(prefixed(RELEASE, moved(sent, client.device)))
        return sent

    def _header(self, client: Client, down: Payload) -> Payload:
        """Return the header that the client takes over; {} if it keeps its current one."""
        if self.shares == "nothing":
            is_new = "weight" not in client.memory
            return solve(self._moments(client), self.header, self.shrinkage) if is_new else {}
        if not down["map"].cpu().equal(fingerprint(self._map(client.task))):
            raise ConfigError(
                "method.features: the feature map of this client differs from the server's; use "
                "inputs of the same shape, and the same settings, weights and libraries"
            )
        if "means" in down:
            return solve_with_own_covariance(down, self._moments(client), self.shrinkage)
        return {name: down[name] for name in ("classes", "weight", "bias") if name in down}

    def _weigh(self, client: Client, down: Payload) -> Tensor:
        """Choose the weights of network and header on the validation split; return the losses.

        If the header lacks a class of the client, the network predicts alone.
        """
        counts = client.data.train.labels.bincount(minlength=client.task.num_classes)
        own, validation = counts.nonzero().flatten(), client.data.validation
        rows = validation.index[counts[validation.labels] > 0]
        header_classes = client.memory.get("classes", counts[:0]).cpu()
        client.memory.pop("pair", None)
        if not len(rows) or not bool(torch.isin(own, header_classes).all()):
            return torch.zeros(0, len(fusion.PAIRS))
        samples = Examples(validation.x, validation.y, rows)
        network = outputs(client, client.model, samples)
        header = outputs(client, lambda x: self._header_logits(client, x), samples)
        prior = (counts[own] / counts.sum()).log()
        losses = fusion.losses(network, header, own, prior, samples.labels)
        shared = down["losses"][0].cpu() if len(down.get("losses", ())) else None
        pair = fusion.choose(losses, len(rows), shared)
        client.memory |= moved({"own": own, "prior": prior, "pair": pair}, client.device)
        withheld = client.privacy is not None or client.task.secure
        return losses[None][:0] if withheld else losses[None]

    def _fused(self, client: Client, x: Tensor, header: Tensor) -> Tensor:
        memory = client.memory
        how = (memory["own"], memory["prior"], memory["pair"])
        return fusion.own_classes(client.model(x), header, *how)

    def _header_logits(self, client: Client, x: Tensor) -> Tensor:
        features = self._map(client.task, client.device)(x)
        return header_logits(client.memory, features, client.task.num_classes)

    def _solved_once(self, server: Payload, uploads: Uploads) -> Payload:
        """Return the server's state with the header solved from the first sum of statistics.

        There is no second sum: the difference of two would be the statistics of a few clients.
        """
        for upload in uploads:
            sums, is_solved = upload.payload, int(server["version"]) > 0
            if is_solved or not len(sums["classes"]):
                continue
            after = server | {"version": torch.tensor(1)}
            if self.shares == "class means":
                return after | prefixed("header.", {n: sums[n] for n in ("classes", "means")})
            total = Moments.read(sums, len(server["sum.counts"]))
            header = solve(total, self.header, self.shrinkage)
            return after | prefixed("sum.", vars(total)) | prefixed("header.", header)
        return server

    def _added(self, server: Payload, client_id: int, statistics: Payload) -> Payload:
        """Return the server's state with the statistics of a client that had sent none."""
        total = Moments(**part(server, "sum."))
        if self.shares == "moments":
            total = total + Moments.read(statistics, len(server["sum.counts"]))
        given = server["given"].clone()
        given[client_id] = True
        sent = prefixed(f"client.{client_id}.", statistics)
        return {**server, **prefixed("sum.", vars(total)), **sent, "given": given}

    def _solved(self, server: Payload) -> Payload:
        """Return the server's state with the header solved from all its statistics."""
        rest = {name: t for name, t in server.items() if not name.startswith("header.")}
        senders = server["given"].nonzero().flatten().tolist()
        statistics = [part(server, f"client.{sender}.") for sender in senders]
        if not statistics:
            header: Payload = {}
        elif self.shares == "class means":
            header = weighted_means(statistics, len(server["sum.counts"]))
        else:
            sizes = torch.tensor([len(one["classes"]) for one in statistics])
            noise = private_moments.noise_level(server["noise"], sizes, self.feature_dim)
            total = Moments(**part(server, "sum."))
            header = solve(total, self.header, self.shrinkage, noise)
        return {**rest, **prefixed("header.", header), "version": server["version"] + 1}


def _summed(server: Payload) -> bool:
    """Return True if the server learns only sums, so that its state has no row for a client."""
    return "given" not in server
