"""Methods whose server has unlabelled public data: its labels do not reach them."""

from pathlib import Path

import numpy as np
import pytest

from fedgh.training import loop
from tests.support.states import states
from tests.support.tiny import quick, tiny_shared

LABELS = np.arange(40) % 10


def trained(method: str, folder: Path, labels: np.ndarray, seed: int = 0) -> dict[str, bytes]:
    """Return the states of a run with a file of public images that have these labels."""
    folder.mkdir()
    x = np.random.default_rng(seed).integers(0, 256, (40, 1, 32, 32)).astype(np.uint8)
    np.savez(folder / "public.npz", x=x, y=labels.astype(str))
    public = ["public.name=npz", f"public.path={folder / 'public.npz'}", "public.samples=20"]
    short = ["federation.rounds=1", "method.server_steps=2"]
    prepared = quick(f"method.name={method}", *tiny_shared(method), *public, *short)
    return states(loop.run(prepared, folder / "run"))


@pytest.mark.parametrize("method", ["feddf", "fedet", "fedkemf"])
def test_other_labels_of_public_samples_give_the_same_bits(method: str, tmp_path: Path) -> None:
    one = trained(method, tmp_path / "one", LABELS)
    shuffled = np.random.default_rng(1).permutation(LABELS)
    assert trained(method, tmp_path / "shuffled", shuffled) == one
    others = trained(method, tmp_path / "others", LABELS, seed=1)
    assert others["server.safetensors"] != one["server.safetensors"]
