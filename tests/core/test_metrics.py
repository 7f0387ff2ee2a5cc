"""Metrics agree with scikit-learn, and with numbers worked by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss

from fedgh.core.local import evaluate
from fedgh.core.metrics import METRICS, Evaluation, balanced_accuracy, macro_f1, scores, spread
from fedgh.methods.standalone import Standalone
from tests.support.tiny import quick

LABELS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


def counted(pairs: list[tuple[int, int]]) -> Evaluation:
    counts = torch.zeros(5, 5, dtype=torch.int64)
    for true, said in pairs:
        counts[true, said] += 1
    return Evaluation(counts, 0.25)


@given(LABELS)
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
def test_metrics_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    true, said = ([pair[k] for pair in pairs] for k in (0, 1))
    found = scores(counted(pairs), "test")
    assert found == {
        "accuracy": pytest.approx(accuracy_score(true, said)),
        "balanced_accuracy": pytest.approx(balanced_accuracy_score(true, said)),
        "macro_f1": pytest.approx(f1_score(true, said, average="macro")),
        "loss": 0.25,
    }


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    evaluation = counted([(0, 0)] * 9 + [(1, 0)])
    assert METRICS["accuracy"].of(evaluation) == 0.9
    assert balanced_accuracy(evaluation) == 0.5
    assert macro_f1(evaluation) == pytest.approx((18 / 19 + 0) / 2)


def test_predictions_are_counted_and_the_loss_is_the_cross_entropy() -> None:
    client = quick().blueprint().make(0)
    evaluation = evaluate(client, Standalone().logits, client.data.test)
    test = client.data.test
    assert int(evaluation.counts.sum()) == len(test)
    assert evaluation.counts.sum(1).tolist() == test.labels.bincount(minlength=10).tolist()
    from fedgh.core.batches import to_input

    client.model.eval()
    with torch.inference_mode():
        shares = client.model(to_input(test.x[test.index])).double().softmax(1)
    wanted = log_loss(test.labels.numpy(), shares.numpy(), labels=list(range(10)))
    assert evaluation.loss == pytest.approx(wanted, rel=1e-6)


def test_the_spread_over_clients_worked_by_hand() -> None:
    accuracies = torch.tensor([0.5, torch.nan, 0.7, 0.9], dtype=torch.float64)
    assert spread(accuracies) == {
        "std": pytest.approx((0.08 / 3) ** 0.5),
        "p10": pytest.approx(0.54),
        "worst": 0.5,
    }
    assert spread(accuracies[1:2]) == {"std": None, "p10": None, "worst": None}
