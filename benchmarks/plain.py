"""A plain implementation of a FedGH round, with the usual tools of PyTorch, for comparison.

It is one process with torch's own threads. A DataLoader applies the usual per-sample transforms of
PIL images (written here, so that torchvision is not needed), representations are averaged sample
by sample, and autograd trains the header one pair at a time. Clients, data, initial weights and
order of batches are those of fedgh, so without augmentation header and accuracies must be the same.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, Sampler

from fedgh.core.types import Client, Examples, Payload
from fedgh.training.experiment import Experiment


class Images(Dataset[tuple[Tensor, int]]):
    """The samples of a client as PIL images, transformed one at a time."""

    def __init__(self, examples: Examples, augment: list[str]) -> None:
        self.images = examples.x[examples.index].permute(0, 2, 3, 1).numpy()
        self.labels = examples.labels.tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[item])
        if "flip" in self.augment and torch.rand(1) < 0.5:
            image = ImageOps.mirror(image)
        if "crop" in self.augment:
            image = random_crop(image)
        x = normalize(to_tensor(image))
        if "erase" in self.augment and torch.rand(1) < 0.5:
            x = random_erasing(x)
        return x, self.labels[item]


def random_crop(image: Image.Image, padding: int = 4) -> Image.Image:
    width, height = image.size
    padded = ImageOps.expand(image, padding)
    top = int(torch.randint(0, 2 * padding + 1, (1,)))
    left = int(torch.randint(0, 2 * padding + 1, (1,)))
    return padded.crop((left, top, left + width, top + height))


def to_tensor(image: Image.Image) -> Tensor:
    """Return [channels, height, width] in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div(255)


def normalize(x: Tensor) -> Tensor:
    mean, std = torch.tensor([0.5, 0.5, 0.5]), torch.tensor([0.5, 0.5, 0.5])
    return x.clone().sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1))


def random_erasing(x: Tensor) -> Tensor:
    _, height, width = x.shape
    for _ in range(10):
        area = height * width * float(torch.empty(1).uniform_(0.02, 0.33))
        log_ratio = torch.empty(1).uniform_(math.log(0.3), math.log(3.3))
        ratio = float(torch.exp(log_ratio))
        h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if h < height and w < width:
            top = int(torch.randint(0, height - h + 1, (1,)))
            left = int(torch.randint(0, width - w + 1, (1,)))
            x = x.clone()
            x[:, top : top + h, left : left + w] = 0
            return x
    return x


class Shuffled(Sampler[int]):
    """A new random order in every epoch, drawn from the client's own stream."""

    def __init__(self, client: Client) -> None:
        self.size = len(client.data.train)
        self.rng = client.stream("batches")

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.size, generator=self.rng).tolist()


def plain_clients(experiment: Experiment) -> list[Client]:
    """Return all clients with the initial weights of fedgh, in torch's default memory format."""
    blueprint = experiment.blueprint()
    clients = [blueprint.make(client) for client in range(experiment.task.num_clients)]
    for client in clients:
        client.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return clients


def plain_round(
    clients: list[Client], header: Payload, server_lr: float
) -> tuple[Payload, list[float]]:
    """Compute round 1: train every client, then the header. Return the header and accuracies."""
    pairs, accuracies = [], []
    for client in clients:
        client.round = 1
        client.model.header.load_state_dict(header)
        train(client)
        pairs.append(class_means(client))
        accuracies.append(accuracy(client))
    return train_header(header, pairs, server_lr), accuracies


def train(client: Client) -> None:
    local = client.local
    optimizer = torch.optim.SGD(
        client.model.parameters(), local.lr, local.momentum, weight_decay=local.weight_decay
    )
    data = Images(client.data.train, list(local.augment))
    loader = DataLoader(data, local.batch_size, sampler=Shuffled(client))
    client.model.train()
    for _ in range(local.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(client.model(x), y).backward()
            nn.utils.clip_grad_norm_(client.model.parameters(), local.clip)
            optimizer.step()


@torch.no_grad()
def class_means(client: Client) -> dict[int, Tensor]:
    client.model.eval()
    of_class: dict[int, list[Tensor]] = defaultdict(list)
    for x, y in DataLoader(Images(client.data.train, []), client.local.batch_size):
        for representation, label in zip(client.model.represent(x), y.tolist(), strict=True):
            of_class[label].append(representation)
    return {label: torch.stack(of_class[label]).mean(0) for label in sorted(of_class)}


@torch.no_grad()
def accuracy(client: Client) -> float:
    client.model.eval()
    right = 0
    for x, y in DataLoader(Images(client.data.test, []), client.local.batch_size):
        right += int((client.model(x).argmax(1) == y).sum())
    return right / len(client.data.test)


def train_header(header: Payload, uploads: list[dict[int, Tensor]], lr: float) -> Payload:
    num_classes, rep_dim = header["weight"].shape
    layer = nn.Linear(rep_dim, num_classes)
    layer.load_state_dict(header)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    for upload in uploads:
        for label, representation in upload.items():
            optimizer.zero_grad()
            cross_entropy(layer(representation[None]), torch.tensor([label])).backward()
            optimizer.step()
    return {name: tensor.detach() for name, tensor in layer.state_dict().items()}
