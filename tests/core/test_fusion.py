"""Fusion of a client's network with the header: logits, losses and the selected weights."""

import math

import torch

from fedgh.core import fusion

OWN = torch.tensor([1, 3])
PRIOR = torch.tensor([0.25, 0.75]).log()
NETWORK = torch.tensor([[9.0, 1.0, 9.0, 0.0]])
HEADER = torch.tensor([[0.0, 2.0, 5.0, 4.0]])


def test_fused_logits_equal_those_computed_by_hand() -> None:
    found = fusion.own_classes(NETWORK, HEADER, OWN, PRIOR, torch.tensor([0.5, 0.25]))
    log_sum = math.log(math.e + 1)  # log-sum-exp of the network's logits 1 and 0
    expected = [
        0.5 * (1 - log_sum) + 0.25 * 2 + 0.5 * math.log(0.25),
        0.5 * (0 - log_sum) + 0.25 * 4 + 0.5 * math.log(0.75),
    ]
    torch.testing.assert_close(found[0, OWN], torch.tensor(expected).log_softmax(0))
    assert found[0, [0, 2]].tolist() == [fusion.OTHER_CLASS_LOGIT] * 2


def test_weights_of_zero_leave_the_network_or_the_header_alone() -> None:
    alone = fusion.own_classes(NETWORK, HEADER, OWN, PRIOR, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(alone[:, OWN], NETWORK[:, OWN].log_softmax(1))
    header = fusion.own_classes(NETWORK, HEADER, OWN, PRIOR, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(header[:, OWN], (HEADER[:, OWN] + PRIOR).log_softmax(1))
    assert [1.0, 0.0] in fusion.PAIRS.tolist()
    assert [0.0, 1.0] in fusion.PAIRS.tolist()


def test_over_all_classes_the_header_decides_between_own_and_other_classes() -> None:
    fused = fusion.own_classes(NETWORK, HEADER, OWN, PRIOR, torch.tensor([1.0, 0.0]))
    found = fusion.all_classes(fused, HEADER, OWN).exp()[0]
    header = HEADER[0].softmax(0)
    assert math.isclose(float(found.sum()), 1, abs_tol=1e-6)
    torch.testing.assert_close(found[[0, 2]], header[[0, 2]])
    # The network divides the header's probability of the own classes as e to 1.
    torch.testing.assert_close(found[1] / found[3], torch.tensor(math.e))
    torch.testing.assert_close(found[OWN].sum(), header[OWN].sum())


def test_losses_equal_the_cross_entropy_of_each_pair() -> None:
    network, header = torch.randn(5, 4), torch.randn(5, 4)
    y = torch.tensor([1, 3, 3, 1, 3])
    found = fusion.losses(network, header, OWN, PRIOR, y)
    for loss, pair in zip(found, fusion.PAIRS, strict=True):
        logits = fusion.own_classes(network, header, OWN, PRIOR, pair)
        expected = torch.nn.functional.cross_entropy(logits, y)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)


def test_choice_follows_the_shared_loss_only_with_few_own_samples() -> None:
    own, shared = torch.ones(len(fusion.PAIRS)), torch.ones(len(fusion.PAIRS))
    own[3], shared[8] = 0.0, 0.0
    assert fusion.choose(own, 5, shared).equal(fusion.PAIRS[8])
    assert fusion.choose(own, 500, shared).equal(fusion.PAIRS[3])
    assert fusion.choose(own, 5, None).equal(fusion.PAIRS[3])
