"""Losses that several methods use."""

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax


def distill(teacher: Tensor, student: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)), the batch mean; the teacher is constant."""
    return kl_div(
        log_softmax(student, dim=1),
        log_softmax(teacher.detach(), dim=1),
        log_target=True,
        reduction="batchmean",
    )
