"""Check the locked packages for vulnerabilities known to the package registry: `make check`.

A known vulnerability fails the check, and so does an error in the check itself. If the registry
cannot be reached or does not know a package, the output names that, and the check does not fail.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tools.lock import LOCK, locked

TIMEOUT = 120
"""Seconds for all packages together."""

UNREACHABLE = ("ConnectionError", "ConnectTimeout", "Max retries exceeded", "ServiceError")
"""Parts of the error messages of pip-audit when it cannot reach the registry."""


@dataclass(frozen=True)
class Findings:
    """The answers of the registry."""

    vulnerable: dict[str, list[str]]  # package -> its known vulnerabilities
    unknown: list[str]  # packages about which the registry reports nothing

    def verdict(self, packages: int) -> tuple[bool, str]:
        """Return whether the check passes, and a message."""
        if self.vulnerable:
            lines = [f"{name}: {', '.join(ids)}" for name, ids in sorted(self.vulnerable.items())]
            message = "known vulnerabilities; upgrade these packages in requirements.lock:\n"
            return False, message + "\n".join(lines)
        checked = packages - len(self.unknown)
        if checked == 0:
            return (
                True,
                "vulnerabilities: NOT CHECKED, the registry reports on none of the packages",
            )
        message = f"vulnerabilities: none known in {checked} of {packages} packages"
        return True, message + (f"; not checked: {', '.join(self.unknown)}" if self.unknown else "")


def read(report: str) -> Findings:
    """Return the findings in a report of pip-audit. Raise ValueError if it is not a report."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
        return Findings(
            vulnerable={
                package["name"]: [
                    f"{flaw['id']} (fixed in {', '.join(flaw['fix_versions']) or 'no version'})"
                    for flaw in package["vulns"]
                ]
                for package in packages
                if package.get("vulns")
            },
            unknown=sorted(package["name"] for package in packages if "skip_reason" in package),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a report of pip-audit: {error!r}") from None


def ask() -> str:
    """Return the report of pip-audit; an empty text if the registry does not answer.

    Raise RuntimeError if pip-audit fails for another reason.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps"]
    options = ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.stdout or any(text in done.stderr for text in UNREACHABLE):
        return done.stdout
    raise RuntimeError(f"pip-audit ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def main() -> int:
    """Print the findings; return 1 if the check fails."""
    names = locked(LOCK.read_text(encoding="utf-8"))
    print(f"vulnerabilities: checking {len(names)} packages, for at most {TIMEOUT} s", flush=True)
    try:
        report = ask()
        if report:
            passed, message = read(report).verdict(len(names))
        else:
            passed, message = True, "vulnerabilities: NOT CHECKED, the registry cannot be reached"
    except (RuntimeError, ValueError) as error:
        passed, message = False, f"vulnerabilities: the check failed: {error}"
    print(message)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
