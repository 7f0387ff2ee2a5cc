"""The test for infinity and NaN in tensors."""

from collections.abc import Iterable

from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return true if no tensor has infinity or NaN."""
    return all(map(_is_finite, tensors))


def _is_finite(tensor: Tensor) -> bool:
    # Infinity and NaN pass into the sum, which takes one pass and no memory. It may overflow.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
