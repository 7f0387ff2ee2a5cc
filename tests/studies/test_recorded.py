"""The study of a folder is found by its text, which may come from a remote party."""

import shutil
from pathlib import Path

import pytest

from fedgh.errors import ConfigError, RunError
from fedgh.studies.recorded import find_text, read_request
from fedgh.studies.reproduce import Reproduction
from tests.support.commands import inside

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def a_text(folder: Path, request: Reproduction | str) -> Path:
    command = request if isinstance(request, str) else request.command()
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "table-hetero.md"
    text.write_text(f"# A study\n\n- command: {command}\n")
    return text


@pytest.mark.parametrize(
    "request_",
    [
        Reproduction("table-hetero"),
        Reproduction("table-hetero", "smoke", [0, 1, 2], ["run.engine=serial"]),
        Reproduction("table-hetero", "smoke", [3], ["local.lr=0.1", "data.path=a b'c"]),
    ],
)
def test_a_command_leads_back_to_its_request(request_: Reproduction, tmp_path: Path) -> None:
    text = a_text(tmp_path / request_.budget, request_)
    found = read_request(text, trusted=True)
    assert found.command() == request_.command()


def test_the_text_is_found_in_the_folder_or_its_parent(tmp_path: Path) -> None:
    assert find_text(tmp_path) is None
    text = a_text(tmp_path / "smoke", "")
    (tmp_path / "smoke" / "README.md").write_text("")
    assert find_text(tmp_path) == find_text(tmp_path / "smoke") == find_text(text) == text
    assert find_text(tmp_path / "smoke" / "README.md") is None
    (tmp_path / "smoke" / "models.md").write_text("")
    with pytest.raises(RunError, match=r"results of 2 studies; name one: .*models\.md, "):
        find_text(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "rm -rf /",
        "fedgh run demo",
        "fedgh reproduce table-homo --budget smoke --seeds 0",
        "fedgh reproduce table-hetero --budget huge --seeds 0",
        "fedgh reproduce table-hetero --budget smoke --seeds zero",
        "fedgh reproduce table-hetero --budget smoke --seeds 0 --out /",
        "fedgh reproduce table-hetero --budget smoke --seeds",
        "fedgh reproduce table-hetero --budget smoke",
        "fedgh reproduce 'table-hetero",
    ],
)
def test_another_command_is_refused(command: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no command of `fedgh reproduce`"):
        read_request(a_text(tmp_path / "smoke", command), trusted=True)


def test_settings_that_may_name_code_need_trust(tmp_path: Path) -> None:
    request = Reproduction("table-hetero", "smoke", [0], ["model.extractors=evil:net"])
    text = a_text(tmp_path / "smoke", request)
    with pytest.raises(ConfigError, match=r"--set model\.extractors=evil:net; .* add --trust"):
        read_request(text, trusted=False)
    assert read_request(text, trusted=True).overrides == ["model.extractors=evil:net"]


def test_a_text_cannot_ask_for_any_number_of_runs(tmp_path: Path) -> None:
    request = Reproduction("table-hetero", "smoke", range(10_000))
    with pytest.raises(RunError, match="names 10000 seeds; at most 100 are read"):
        read_request(a_text(tmp_path / "smoke", request), trusted=True)


def test_the_folder_of_another_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="its folder should be named smoke"):
        read_request(a_text(tmp_path / "moved", Reproduction("table-hetero", "smoke")), True)


def test_report_writes_the_page_of_a_study_and_prints_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "quick"
    folder.mkdir()
    for text in ("table-hetero.md", "table-hetero.missing.json"):
        if (RESULTS / "quick" / text).exists():
            shutil.copy(RESULTS / "quick" / text, folder)
    for run in ("cifar10-hetero", "cifar100-hetero"):
        shutil.copytree(RESULTS / "quick" / run, folder / run)
    assert inside(monkeypatch, "report", str(tmp_path)) == 0
    assert f"report     {folder / 'table-hetero.html'}" in capsys.readouterr().out
    assert "paper, %" in (folder / "table-hetero.html").read_text()
    assert inside(monkeypatch, "report", str(tmp_path), "--format", "csv") == 0
    committed = (RESULTS / "quick" / "table-hetero.csv").read_text()
    assert capsys.readouterr().out == committed
    assert inside(monkeypatch, "report", str(tmp_path), "--format", "latex") == 0
    latex = capsys.readouterr().out
    assert r"five networks, N = 10, C = 100\% & fedgh & 97.60" in latex
    comment = latex.partition("% \\usepackage")[0]
    assert "% budget quick: " in comment
    assert all(line.startswith("% ") for line in comment.splitlines())
