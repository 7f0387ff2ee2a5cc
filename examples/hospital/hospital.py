"""A hospital takes part in a federation with its own network and its own patients.

Patients, network and weights never leave the hospital: it sends one class mean per diagnosis, and
receives the global header.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedgh import Task
from fedgh.flower import ClientSpec, NodeConfig, client_app


def make_client(task: Task, node_config: NodeConfig) -> ClientSpec:
    """Return the patients of this hospital and a network of three layers."""
    x, y = patients(int(node_config["client"]), task.num_clients)
    network = nn.Sequential(
        nn.Linear(x.shape[1], 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, task.rep_dim),
    )
    return ClientSpec(network, (x, y))


def patients(site: int, sites: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a part of a public data set, in place of the hospital's own database."""
    measured, diagnoses = load_breast_cancer(return_X_y=True)
    x, y = torch.from_numpy(measured).float(), torch.from_numpy(diagnoses)
    own = torch.arange(site, len(y), sites)
    x, y = x[own], y[own]
    return (x - x.mean(0)) / x.std(0), y


app = client_app(make_client)
