import pytest
import torch

# As in a run: on a busy machine two threads wait for each other longer than one works.
torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name a test's group in its id: by that, pytest-xdist runs a group in one process.

    pytest-xdist 3.8 names it as well, but since pytest 9.2 without effect: the
    federations and runs that a group shares would be made twice, at the same time.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
        end = "@" + "_".join(sorted(groups))
        if groups and not item.nodeid.endswith(end):
            item._id = type(item.id).parse(item.nodeid + end)
            assert item.nodeid.endswith(end)


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
