"""The checks of `make check` on the packages that fedgh depends on."""

import json
import subprocess
import sys

import pytest

from tools import licences, vulnerabilities
from tools.lock import LOCK, locked
from tools.vulnerabilities import Findings

NAMES = locked(LOCK.read_text())


def test_package_names_of_a_lock_file_are_normalised() -> None:
    assert locked("# exact\nPySocks==1.7\n\nboolean.py==5.0\npip_api==0.1\n") == [
        "boolean-py",
        "pip-api",
        "pysocks",
    ]


@pytest.mark.parametrize(
    ("expression", "classifiers", "stated", "expected"),
    [
        ("MIT AND PSF-2.0", ["License :: OSI Approved :: BSD License"], "GPL", "MIT AND PSF-2.0"),
        ("", ["License :: OSI Approved :: BSD License", "Topic :: Internet"], "", "BSD"),
        ("", ["License :: Public Domain", "License :: OSI Approved :: MIT License"], "",
         "Public Domain AND MIT"),
        ("", [], "Apache-2.0", "Apache-2.0"),
        ("", ["License :: Free To Use"], "see the file LICENSE", "unknown"),
    ],
)  # fmt: skip
def test_a_licence_is_read_from_the_metadata(
    expression: str, classifiers: list[str], stated: str, expected: str
) -> None:
    assert licences.licence("made-up", expression, classifiers, stated) == expected


def test_a_licence_missing_in_the_metadata_comes_from_the_reviewed_list() -> None:
    assert licences.licence("ray", "", [], "Apache 2.0") == "Apache-2.0"
    assert set(licences.REVIEWED) <= set(NAMES)


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("MIT AND (BSD-3-Clause OR GPL-3.0-only)", False),  # not reviewed
        ("unknown", False),
        ("", False),
    ],
)
def test_licence_expressions_are_accepted_or_rejected(expression: str, fine: bool) -> None:
    assert licences.accepted(expression) == fine


def test_an_outdated_page_of_licences_is_reported() -> None:
    names, found = ["a", "b", "c"], {"a": "MIT", "c": "ISC"}
    written = licences.page(names, found)
    assert licences.problems(names, found, written) == []
    assert licences.problems(names, {"a": "MIT"}, written) == []  # c is not for this machine
    for other in (names[:2], [*names, "d"]):
        (problem,) = licences.problems(other, {"a": "MIT"}, written)
        assert "out of date" in problem
    wrong = licences.problems(names, {"a": "MIT", "c": "GPL-3.0-only"}, written)
    assert [text.split(":")[0] for text in wrong] == ["c", "docs/licences.md is out of date"]


def test_the_licences_of_all_that_is_installed_here_are_accepted() -> None:
    assert licences.problems(NAMES, licences.installed(NAMES), licences.PAGE.read_text()) == []


def report(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


FINE: dict[str, object] = {"name": "fine", "version": "1", "vulns": []}
FLAWED: dict[str, object] = {
    "name": "flawed",
    "version": "1",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2", "3"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
UNKNOWN: dict[str, object] = {"name": "unknown", "skip_reason": "not found"}


def test_a_known_vulnerability_fails_the_check() -> None:
    good, words = vulnerabilities.read(report(FINE, FLAWED, UNKNOWN)).verdict(3)
    assert not good
    assert "flawed: PYSEC-1 (fixed in 2, 3), PYSEC-2 (fixed in no version)" in words


def test_unchecked_packages_are_listed() -> None:
    good, words = vulnerabilities.read(report(FINE, UNKNOWN)).verdict(2)
    assert good
    assert words == "vulnerabilities: none known in 1 of 2 packages; not checked: unknown"
    good, words = Findings({}, ["unknown"]).verdict(1)
    assert good
    assert "NOT CHECKED" in words


def test_an_unreachable_registry_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vulnerabilities, "ask", lambda: "")
    assert vulnerabilities.main() == 0
    assert "NOT CHECKED" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["Traceback", "{}", "[]", '{"dependencies": [1]}'])
def test_an_invalid_answer_fails_the_check(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vulnerabilities, "ask", lambda: text)
    assert vulnerabilities.main() == 1
    assert "the check failed" in capsys.readouterr().out


def test_a_failing_audit_tool_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert vulnerabilities.main() == 1


def test_a_hanging_registry_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip-audit", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert vulnerabilities.ask() == ""
