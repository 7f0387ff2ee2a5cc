import pytest
import torch

# As in a run: on a busy machine two threads wait for each other longer than one works.
torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many inputs the tests in tests/fuzz have tried."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    properties = [
        item
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for item in report.user_properties
    ]
    inputs = sum(int(str(count)) for name, count in properties if name == "inputs")
    if inputs:
        terminalreporter.write_line(f"{inputs:,} hostile inputs")
