"""Ask the registry about known vulnerabilities of the locked packages: `make check`.

One that is known fails, and so does a check that does not work. Where the registry cannot be
reached or knows nothing, that is said, and nothing is claimed.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tools.lock import LOCK, locked

PATIENCE = 120
"""Seconds for all packages together."""

UNREACHABLE = ("ConnectionError", "ConnectTimeout", "Max retries exceeded", "ServiceError")
"""What pip-audit says when it has no way to the registry."""


@dataclass(frozen=True)
class Findings:
    """What the registry knows."""

    vulnerable: dict[str, list[str]]  # package -> what is known about it
    unknown: list[str]  # packages about which it has no word

    def verdict(self, packages: int) -> tuple[bool, str]:
        """Whether the packages may be used, and what to say."""
        if self.vulnerable:
            lines = [f"{name}: {', '.join(ids)}" for name, ids in sorted(self.vulnerable.items())]
            return False, "known vulnerabilities; upgrade in requirements.lock:\n" + "\n".join(
                lines
            )
        asked = packages - len(self.unknown)
        if asked == 0:
            return True, "vulnerabilities: NOT CHECKED, the registry has no word on any package"
        known = f"vulnerabilities: none known in {asked} of {packages} packages"
        return True, known + (f"; not checked: {', '.join(self.unknown)}" if self.unknown else "")


def read(report: str) -> Findings:
    """What pip-audit has found; ValueError when it has not finished."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
        return Findings(
            vulnerable={
                package["name"]: [
                    f"{flaw['id']} (mended in {', '.join(flaw['fix_versions']) or 'no version'})"
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
    """Have pip-audit write a report; nothing when the registry does not answer.

    RuntimeError when it is not the registry's fault.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps"]
    options = ["--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.stdout or any(words in done.stderr for words in UNREACHABLE):
        return done.stdout
    raise RuntimeError(f"pip-audit ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def main() -> int:
    """Print what is known, and fail if that is bad."""
    names = locked(LOCK.read_text(encoding="utf-8"))
    print(f"asking about {len(names)} packages, for at most {PATIENCE} s", flush=True)
    try:
        report = ask()
        if report:
            good, words = read(report).verdict(len(names))
        else:
            good, words = True, "vulnerabilities: NOT CHECKED, the registry cannot be reached"
    except (RuntimeError, ValueError) as error:
        good, words = False, f"vulnerabilities: the check failed: {error}"
    print(words)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
