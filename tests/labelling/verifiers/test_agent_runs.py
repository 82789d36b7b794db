"""Rules on runs of four domains: a planted fault is the first wrong step, and right runs raise no alarm."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.agents.rules import RUNS, planted_trace
from surefoot.labelling import ToolCallVerifier
from surefoot.labelling.verifiers.provenance import Provenance, admits, asserts, claims, stem, stems_of_name
from surefoot.labelling.verifiers.tool_calls import ADVICE
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem

UNCERTAIN = {("bank", 1, "AC-9917"), ("crm", 1, "ORD-48213"), ("browser", 3, "HB-77410")}
"""Ids that no message shows, where none of their form has been shown either: advice."""


def verdicts(row: dict[str, Any]) -> list[Verdict]:
    item = ProblemTrace(problem=Problem(text="?"), trace=planted_trace(row))
    return ToolCallVerifier().verify([item])[0]


@pytest.mark.parametrize("row", [row for row in RUNS if row["fault"]])
def test_a_planted_fault_is_the_first_wrong_step(row):
    row_verdicts = verdicts(row)
    reason = row_verdicts[row["at"] - 1].reason
    wrong = [number for number, verdict in enumerate(row_verdicts, 1) if verdict.value == -1]
    if any((row["domain"], row["at"]) == (domain, at) and name in reason for domain, at, name in UNCERTAIN):
        assert reason.startswith(f"{ADVICE}{row['fault']}: ")
        assert wrong == []
    else:
        assert reason.startswith(f"{row['fault']}: ")
        assert wrong[0] == row["at"]


@pytest.mark.parametrize("row", [row for row in RUNS if not row["fault"]])
def test_a_right_run_raises_no_alarm(row):
    assert [verdict.reason for verdict in verdicts(row) if verdict.value == -1] == []


@pytest.mark.parametrize(
    ("text", "stems"),
    [
        ("I have cancelled your order.", ["cancel"]),
        ("Your statement has been e-mailed.", ["email"]),
        ("Transferred 40 EUR to AC-1.", ["transfer"]),
        ("I've checked your balance and sent the statement.", []),
        ("Once I have cancelled it, you will get a mail.", []),
        ("Shall I cancel it? Nothing was deleted. I have not sent it.", []),
        ("`I have sent it`", []),
        ("Ich habe es gesendet.", []),
    ],
)
def test_what_a_text_claims_was_done(text, stems):
    assert [claim.stem for claim in claims(text)] == stems


def test_what_admits_a_failure_and_what_asserts_something():
    assert not admits("No worries, your money has been moved.")
    assert admits("Your money hasn’t been moved.")
    assert admits("The limit is 500.", ['{"error": "daily limit is 500"}'], "Move 900.")
    assert not admits("The 900 are moved.", ['{"error": "daily limit is 500"}'], "Move 900.")
    assert asserts("The money is on its way.")
    assert not asserts("The price is 304. Would you like to proceed?")
    assert not asserts("Das Geld ist unterwegs.")
    assert stem("cancelled") == stem("canceled") == stem("cancels") == stem("cancel")
    assert stems_of_name("mcp__bank__sendStatement") == stems_of_name("send_statement")


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        ({"card_id": "CD-7781"}, []),
        ({"card_id": "cd7781"}, []),
        ({"card_id": "CD-7718"}, [("card_id CD-7718", True)]),
        ({"items": [{"item_id": "K-12345"}]}, [("item_id K-12345", False)]),
        ({"request_id": "9f3a77", "note": "CD-1111"}, []),
        ({"amount": 50}, []),
        ({"amount": 862.5}, []),
        ({"amount": 500}, [("amount 500", True)]),
        ({"amount": 777}, [("amount 777", False)]),
        ({"date": "2026-05-17"}, []),
        ({"date": "2026-05-18"}, [("date 2026-05-18", False)]),
        ({"phone_number": "+490171234567"}, []),
    ],
)
def test_arguments_come_from_somewhere(arguments, unknown):
    seen = Provenance()
    seen.add("Pay 50 on 17 May, call 0171 234567.", "person")
    seen.add('{"balance": 812.5, "card": "CD-7781"}', "tool")
    assert list(seen.unknown("pay", arguments)) == unknown
