"""Privacy accounting: compared with closed forms, published values and another accountant."""

import math
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from fedgh import config
from fedgh.errors import ConfigError, MethodError
from fedgh.privacy.accounting import Account, epsilon_of, noise_multiplier
from fedgh.privacy.mechanism import Privacy
from fedgh.training import experiment, loop
from tests.support.tiny import QUICK


def delta_of(epsilon: float, mu: float) -> float:
    """Return the exact δ of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    tail = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    return float(norm.cdf(mu / 2 - epsilon / mu) - tail)


@pytest.mark.parametrize("rounds", [1, 10, 500])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5), (50.0, 1e-3)]
)
def test_noise_multiplier_and_epsilon_equal_the_closed_form(
    epsilon: float, delta: float, rounds: int
) -> None:
    z = noise_multiplier(epsilon, delta, rounds)
    assert delta_of(epsilon, math.sqrt(rounds) / z) == pytest.approx(delta, rel=1e-6)
    assert epsilon_of(rounds / z**2, delta) == pytest.approx(epsilon)


def test_published_values_are_reproduced() -> None:
    """The result of Balle and Wang's program for ε = 1, δ = 1e-5; and δ at ε = 0, by hand."""
    assert noise_multiplier(1.0, 1e-5, 1) == pytest.approx(3.730631634944469, rel=1e-9)
    assert epsilon_of(0.5**2, 2 * norm.cdf(0.25) - 1) == pytest.approx(0, abs=1e-9)


def test_epsilon_agrees_with_the_privacy_loss_accountant() -> None:
    """The PLD accountant composes each release and rounds the privacy loss up."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(GaussianDpEvent(8.0), 7).compose(GaussianDpEvent(5.0), 3)
    ours = epsilon_of(7 / 8.0**2 + 3 / 5.0**2, 1e-5)
    assert ours <= accountant.get_epsilon(1e-5) <= ours * 1.001


def test_account_charges_clients_for_their_requests_only() -> None:
    z = noise_multiplier(8.0, 1e-5, 4)
    account = Account(Privacy("sample", "public", 1.0, z), 8.0, 1e-5, clients=4)
    assert account.highest_epsilon == 0
    for participants in ([0, 1], [0, 2], [0, 1], [0, 1]):
        account.count_requests(participants)
    spent = account.epsilons
    assert spent == [
        pytest.approx(8.0),
        pytest.approx(epsilon_of(3 / z**2, 1e-5)),
        pytest.approx(epsilon_of(1 / z**2, 1e-5)),
        0.0,
    ]
    assert account.highest_epsilon == spent[0] > spent[1] > spent[2]


def test_privacy_rejects_unsuitable_methods_and_invalid_values() -> None:
    private = [*QUICK, "privacy.protects=sample"]
    with pytest.raises(MethodError, match="lg_fedavg sends more than class means"):
        experiment.prepare(config.load("demo", [*private, "method.name=lg_fedavg"]))
    alone = experiment.prepare(config.load("demo", [*private, "method.name=standalone"]))
    assert alone.privacy is None
    assert alone.account() is None
    for wrong in (
        "epsilon=0",
        "epsilon=inf",
        "delta=0",
        "delta=1",
        "delta=1e-16",
        "clip=0",
        "protects=all",
    ):
        with pytest.raises(ConfigError, match=r"privacy\."):
            config.load("demo", [f"privacy.{wrong}"])


def test_missing_dp_accounting_raises_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedgh.extras.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install '.\[privacy\]'"):
        noise_multiplier(3.21, 1e-5, 4)


def test_without_privacy_the_fingerprint_has_no_privacy_section() -> None:
    """Also if the section exists but protects nothing, so older runs keep their fingerprint."""
    plain = config.load("demo", QUICK)
    assert "privacy" not in plain.portable()
    assert config.load("demo", [*QUICK, "privacy.epsilon=1"]).portable() == plain.portable()
    table = plain.to_table()
    del table["privacy"]
    assert config.parse(table) == plain
    private = config.load("demo", [*QUICK, "privacy.protects=sample"])
    assert private.portable()["privacy"]["epsilon"] == 8.0


@pytest.mark.parametrize("method", ["fedgh", "fedproto", "fd"])
@pytest.mark.parametrize(("protects", "counts"), [("sample", "secret"), ("client", "public")])
def test_class_mean_methods_run_with_privacy_and_report_epsilon(
    method: str, protects: str, counts: str, tmp_path: Path
) -> None:
    overrides = [
        f"method.name={method}",
        f"privacy.protects={protects}",
        f"privacy.counts={counts}",
    ]
    overrides += ["privacy.epsilon=4", "federation.participation=0.6", "federation.rounds=2"]
    prepared = experiment.prepare(config.load("demo", [*QUICK, *overrides]))
    run = loop.run(prepared, tmp_path / "run")
    records, summary = run.records(), run.summary()
    assert summary.privacy is not None
    assert (summary.accuracy or 0) > 0.4
    for record in records:
        assert record.rejected == record.failed == []
        assert record.train_loss is None, "the loss is not covered by ε"
        assert record.method_metrics == {}
    requests = [sum(k in record.participants for record in records) for k in range(5)]
    z = summary.privacy.noise_multiplier
    assert summary.privacy.epsilon_per_client == [
        pytest.approx(epsilon_of(n / z**2, 1e-5)) for n in requests
    ]
    assert summary.privacy.epsilon == records[-1].epsilon
    first, *_, last = (record.epsilon or 0 for record in records)
    assert first < last <= 4.0 + 1e-9
