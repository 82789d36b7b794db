"""tools/vulnerabilities.py: what fails, what is accepted and for how long, and what was not looked up."""

import datetime as dt
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import vulnerabilities

TODAY = dt.date(2026, 11, 23)
CLEAN = {"name": "numpy", "version": "2.0", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}
FOUND = {
    "name": "jinja2",
    "version": "3.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2026-1"], "fix_versions": ["3.1"], "description": ""}],
}


def test_a_vulnerability_fails_unless_it_is_accepted_by_any_of_its_names_and_in_time():
    for name in ("PYSEC-1", "CVE-2026-1"):
        lines, good = vulnerabilities.verdict([CLEAN, FOUND], {name: TODAY}, TODAY)
        assert good
        assert lines[0].startswith("accepted until 2026-11-23: jinja2 3.0: CVE-2026-1, PYSEC-1")
    for until in ({}, {"PYSEC-2": TODAY}, {"PYSEC-1": TODAY - dt.timedelta(days=1)}):
        lines, good = vulnerabilities.verdict([CLEAN, FOUND], until, TODAY)
        assert not good
        assert lines[0].startswith("error: jinja2 3.0: CVE-2026-1, PYSEC-1; fixed in: 3.1")
    assert lines[0].endswith("was accepted until 2026-11-22")


def test_what_was_not_looked_up_is_not_called_clean():
    assert vulnerabilities.verdict([CLEAN], {}, TODAY) == (["1 of 1 packages looked up"], True)
    for reported in ([], [SKIPPED]):
        lines, good = vulnerabilities.verdict(reported, {}, TODAY)
        assert (lines, good) == (["the vulnerability scan was not run: service not reached"], True)
    lines, good = vulnerabilities.verdict([CLEAN, SKIPPED, FOUND], {}, TODAY)
    assert not good
    assert lines[1:] == ["2 of 3 packages looked up", "the scan was not run for: torch"]


def test_an_accepted_vulnerability_has_a_reason_and_a_date():
    entry = '[[accepted]]\nid = "PYSEC-1"\nreason = "not called"\nuntil = 2027-01-31\n'
    assert vulnerabilities.accepted(entry) == {"PYSEC-1": dt.date(2027, 1, 31)}
    assert vulnerabilities.accepted(vulnerabilities.ACCEPTED.read_text("utf-8")) is not None
    for field in ("id", "reason", "until"):
        cut = "".join(line for line in entry.splitlines(keepends=True) if not line.startswith(field))
        with pytest.raises(ValueError, match=f"needs '{field}'"):
            vulnerabilities.accepted(cut)
    with pytest.raises(ValueError, match="needs 'until'"):
        vulnerabilities.accepted(entry.replace("2027-01-31", '"2027-01-31"'))
