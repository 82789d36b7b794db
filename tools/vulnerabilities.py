"""Ask which locked packages have known vulnerabilities, and fail for those that nobody has accepted.

    python tools/vulnerabilities.py

A vulnerability is accepted in accepted-vulnerabilities.toml, with a reason and for a time:

    [[accepted]]
    id = "GHSA-xxxx-xxxx-xxxx"
    reason = "the function is never called: ..."
    until = 2027-01-31

Exit status 0: the service was asked and no other vulnerability is known, or the service was not reached, and
this is printed. 1: there is one, or a time is over.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-cuda.lock")
ACCEPTED = ROOT / "accepted-vulnerabilities.toml"
TIMEOUT_S = 60


def accepted(text: str) -> dict[str, dt.date]:
    """Until when each vulnerability is accepted. Raises ``ValueError`` for an entry without a field."""
    until: dict[str, dt.date] = {}
    for entry in tomllib.loads(text).get("accepted", []):
        for field, kind in (("id", str), ("reason", str), ("until", dt.date)):
            if not isinstance(entry.get(field), kind) or not entry[field]:
                raise ValueError(f"{ACCEPTED.name}: {entry} needs '{field}' ({kind.__name__})")
        until[entry["id"]] = entry["until"]
    return until


def verdict(
    packages: Sequence[Mapping[str, Any]], until: Mapping[str, dt.date], today: dt.date
) -> tuple[list[str], bool]:
    """Lines to print, and whether the check passes, for the ``dependencies`` that pip-audit reports.

    pip-audit skips what the service does not know, and counts it as clean: a lock file holds public packages
    alone, so a skipped one was not looked up.
    """
    unknown = [p["name"] for p in packages if "skip_reason" in p]
    if len(unknown) == len(packages):
        return ["the vulnerability scan was not run: service not reached"], True
    lines, good = [], True
    for package in packages:
        for found in package.get("vulns", []):
            names = {found["id"], *found["aliases"]}
            last = max((until[name] for name in names & until.keys()), default=None)
            fix = ", ".join(found["fix_versions"]) or "none"
            line = f"{package['name']} {package['version']}: {', '.join(sorted(names))}; fixed in: {fix}"
            if last is not None and today <= last:
                lines.append(f"accepted until {last}: {line}")
            else:
                lines.append(f"error: {line}" + (f"; was accepted until {last}" if last else ""))
                good = False
    lines.append(f"{len(packages) - len(unknown)} of {len(packages)} packages looked up")
    if unknown:
        lines.append(f"the scan was not run for: {', '.join(unknown)}")
    return lines, good


def scan() -> list[dict[str, Any]]:
    """What pip-audit reports for each locked package; nothing if the service was not reached.

    Raises ``RuntimeError`` if pip-audit cannot read the lock files.
    """
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--format", "json"]
    command += [
        "--progress-spinner",
        "off",
        "--timeout",
        "5",
        *(part for lock in LOCKS for part in ("-r", lock)),
    ]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    if done.stdout:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
        return packages
    if any(word in done.stderr for word in ("ConnectionError", "ServiceError", "Timeout")):
        return []
    raise RuntimeError(f"pip-audit failed: {done.stderr.strip()[-2000:]}")


def main() -> int:
    """Scan and print; the exit status."""
    until = accepted(ACCEPTED.read_text("utf-8"))
    lines, good = verdict(scan(), until, dt.datetime.now(dt.UTC).date())
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
