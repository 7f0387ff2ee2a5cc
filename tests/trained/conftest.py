from pathlib import Path

import pytest
import torch

from fedgh.data.sources import Source
from tests.trained.parts import CLASSES, images, train


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train five clients with images for two rounds of two participants: some never take part."""
    path = tmp_path_factory.mktemp("use") / "pictures"
    return train(path, images(300), "federation.participation=0.4", "federation.rounds=2").path


@pytest.fixture(scope="session")
def table_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train clients whose samples are five numbers."""
    y = torch.arange(150) % 3
    x = torch.randn(150, 5, generator=torch.Generator().manual_seed(1)) + y[:, None]
    path = tmp_path_factory.mktemp("use") / "table"
    return train(path, Source("table", x, y, CLASSES), "federation.rounds=1").path
