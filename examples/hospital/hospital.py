"""A hospital takes part in a federation with its own network and its own patients.

Nothing here leaves the hospital: it sends one mean representation per diagnosis, and gets the
shared header back.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedgh import Task
from fedgh.flower import ClientSpec, NodeConfig, client_app


def make_client(task: Task, node_config: NodeConfig) -> ClientSpec:
    """The patients of this site, and a network of three layers."""
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
    """Stands in for the hospital's own database: every site has other people of a public set."""
    measured, diagnoses = load_breast_cancer(return_X_y=True)
    x, y = torch.from_numpy(measured).float(), torch.from_numpy(diagnoses)
    own = torch.arange(site, len(y), sites)
    x, y = x[own], y[own]
    return (x - x.mean(0)) / x.std(0), y


app = client_app(make_client)
