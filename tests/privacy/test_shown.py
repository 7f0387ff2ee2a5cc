"""Privacy in the closing lines and the report of a run, and noisy uploads of FD."""

from pathlib import Path

import torch
from torch.testing import assert_close

from fedgh.core.types import Recipient
from fedgh.report.run_page import run_page
from fedgh.report.terminal import closing_lines
from fedgh.runs.read import name_runs
from fedgh.training import loop
from tests.support.tiny import quick

PRIVATE = ["privacy.protects=client", "privacy.epsilon=2", "federation.rounds=1"]


def test_closing_lines_and_report_show_epsilon_and_its_scope(tmp_path: Path) -> None:
    private = loop.run(quick(*PRIVATE), tmp_path / "private")
    plain = loop.run(quick("federation.rounds=1"), tmp_path / "plain")
    line = "privacy    ε = 2.00 at δ = 1e-05, for all data of a client; the highest of all clients"
    assert line in closing_lines(private)
    assert "privacy" not in closing_lines(plain)
    pages = [run_page(name_runs([run.path]), lambda _: None) for run in (private, plain)]
    sections = [{section.id: section for section in page.sections} for page in pages]
    assert "privacy" not in sections[1]
    assert "does not cover the accuracies" in sections[0]["privacy"].text
    (table,) = sections[0]["privacy"].parts
    assert [str(getattr(cell, "text", cell)) for cell in table.rows[0]] == [  # type: ignore[union-attr]
        *("private", "all data of a client", "2.00", "2.0", "1e-05", "10.0", "not revealed")
    ]


def test_fd_sends_probability_distributions_with_privacy() -> None:
    prepared = quick(*PRIVATE, "method.name=fd")
    client = prepared.blueprint().make(0)
    method = prepared.config.method
    up = method.client_update(client, method.broadcast(prepared.initial_server(), Recipient(0)))
    assert bool((up["means"] >= 0).all())
    assert_close(up["means"].sum(dim=1), torch.ones(len(up["means"])))
    assert client.release is not None
    assert client.release.round == client.round
