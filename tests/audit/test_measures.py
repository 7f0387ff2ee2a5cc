"""The measures of the audit agree with numbers by hand, brute force and other libraries."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fedgh.audit.images import GAP, psnr, ssim, tile
from fedgh.audit.noise import DELTA, LEVELS, NO_NOISE, Level, clipped, level_of
from fedgh.audit.roc import Scores, auc, tpr_at
from fedgh.privacy.accounting import noise_multiplier
from fedgh.privacy.mechanism import Privacy
from fedgh.report.png import png


def scores(values: torch.Tensor) -> Scores:
    return Scores(values, torch.arange(len(values)))


def test_psnr_equals_numbers_by_hand() -> None:
    black, grey = torch.zeros(1, 4, 4), torch.full((1, 4, 4), 0.1)
    assert float(psnr(black, grey)) == pytest.approx(20)  # error 0.01, so 10 log10 100
    assert float(psnr(black, torch.ones(1, 4, 4))) == 0
    assert float(psnr(grey, grey)) == pytest.approx(100)


def test_ssim_equals_brute_force() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 3, 9, 10))
    windows = []
    for c in range(3):
        for i in range(9 - 6):
            for j in range(10 - 6):
                p, q = (x[c, i : i + 7, j : j + 7].ravel() for x in (a, b))
                luminance = (2 * p.mean() * q.mean() + 1e-4) / (
                    p.mean() ** 2 + q.mean() ** 2 + 1e-4
                )
                covariance = ((p - p.mean()) * (q - q.mean())).mean()
                windows.append(luminance * (2 * covariance + 9e-4) / (p.var() + q.var() + 9e-4))
    one, other = torch.from_numpy(a), torch.from_numpy(b)
    assert float(ssim(one[None], other[None])) == pytest.approx(np.mean(windows))
    assert float(ssim(one[None], one[None])) == pytest.approx(1)


@pytest.mark.parametrize("channels", [1, 3])
def test_tiled_images_are_a_png_that_pillow_reads(channels: int) -> None:
    images = torch.randint(256, (2, 3, channels, 5, 4), generator=torch.Generator().manual_seed(0))
    sheet = tile([list(row / 255) for row in images])
    assert sheet.shape == (2 * 5 + GAP, 3 * 4 + 2 * GAP, channels)
    content = png(*sheet.shape, sheet.numpy().tobytes())
    decoded = np.asarray(Image.open(io.BytesIO(content))).reshape(sheet.shape)
    assert (decoded == sheet.numpy()).all()
    corner = decoded[5 + GAP :, 4 + GAP : 8 + GAP].transpose(2, 0, 1)
    assert (corner == images[1, 1].numpy()).all()


def test_auc_agrees_with_scikit_learn() -> None:
    rng = torch.Generator().manual_seed(0)
    members = torch.randint(0, 9, (40,), generator=rng).double() + 1  # with ties
    others = torch.randint(0, 9, (30,), generator=rng).double()
    truth = [1] * 40 + [0] * 30
    area = auc(scores(members), scores(others))
    assert area.value == pytest.approx(roc_auc_score(truth, torch.cat([members, others])))
    beats = (members[:, None] > others).double() + 0.5 * (members[:, None] == others)
    spread = beats.mean(1).var() / 40 + beats.mean(0).var() / 30  # DeLong, by brute force
    assert area.high - area.low == pytest.approx(2 * 1.96 * math.sqrt(spread))


def test_repeated_samples_do_not_narrow_the_interval_of_the_auc() -> None:
    rng = torch.Generator().manual_seed(0)
    members, others = torch.randn(2, 50, generator=rng)
    once = auc(scores(members + 0.5), scores(others))
    ids = torch.arange(50).repeat(7)
    again = auc(Scores(members.repeat(7) + 0.5, ids), Scores(others.repeat(7), ids))
    assert (again.value, again.low) == pytest.approx((once.value, once.low))


def test_the_true_positive_rate_equals_numbers_by_hand() -> None:
    others = torch.arange(100.0)  # at a rate of 1%, one false positive is allowed
    members = torch.tensor([98.0, 98.5, 99.0, 200.0])
    assert tpr_at(members, others, 0.01) == 0.75
    assert tpr_at(members, others[:99], 0.01) == 0.75  # no false positive is allowed
    assert tpr_at(members, others, 1.0 - 1e-9) == 1.0


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0, 64.0])
def test_the_noise_is_exactly_enough_for_epsilon_and_delta(epsilon: float) -> None:
    """δ is the integral of one density less e^ε times the other, where that is positive."""
    z = noise_multiplier(epsilon, DELTA, 1)
    edge = epsilon * z**2 + 0.5  # it is positive above this value, for means 1 and 0

    def excess(x: float) -> float:
        both = norm.logpdf(x, 1, z), epsilon + norm.logpdf(x, 0, z)
        return math.exp(both[0]) - math.exp(both[1])

    delta, _ = quad(excess, edge, edge + 12 * z, epsabs=1e-14)
    assert delta == pytest.approx(DELTA, rel=1e-5)


def test_noise_and_clipping_equal_numbers_by_hand() -> None:
    sizes, z = torch.tensor([1, 10]), noise_multiplier(8, DELTA, 1)
    assert NO_NOISE.std(sizes, 3.0, 4).tolist() == [0, 0]
    sample = Level(protects="sample", epsilon=8).std(sizes, 3.0, 4)
    assert sample.tolist() == pytest.approx([z * 6, z * 0.6])
    client = Level(protects="client", epsilon=8).std(sizes, 3.0, 4)
    assert client.tolist() == pytest.approx([z * 12, z * 12])
    assert len({str(level) for level in LEVELS}) == len(LEVELS)
    same = level_of(Privacy("sample", "public", 3.0, z))
    assert same.protects == "sample"
    assert same.epsilon == pytest.approx(8, rel=1e-6)
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    shorter = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])
    assert torch.allclose(clipped(vectors, 1.0), shorter)
