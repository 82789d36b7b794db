"""What a program says of its run may be anything: it is read within bounds, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surefoot.labelling.verifiers.execution_trace import ProgramRun
from surefoot.sandbox import Ending, ProgramResult

CALL = {
    "test": 0,
    "arguments": "((1,), {})",
    "lines": [2, 3],
    "last": 3,
    "result": "x",
    "display": "1",
    "raised": None,
}


def run(**changes: Any) -> ProgramRun:
    said = {"calls": [{**CALL, **changes}], "load": None}
    return ProgramRun.of(ProgramResult(ending=Ending.EXITED, stdout=json.dumps(said).encode()))


@pytest.mark.parametrize(
    "changes",
    [
        {"lines": [float("inf")]},
        {"lines": [float("nan")]},
        {"lines": 7},
        {"lines": [[2]]},
        {"last": "end"},
        {"test": None},
        {"raised": ["A"]},
        {"raised": {"kind": 1}},
    ],
)
def test_what_is_no_record_of_a_run_says_nothing(changes: dict[str, Any]) -> None:
    assert run(**changes).calls == ()


def test_texts_are_bounded_and_can_be_stored() -> None:
    forged = run(
        lines=[-(10**30), 10**30], display="\x00" * 9_000, raised=["E" * 9_000, "\ud800" * 9_000, -(10**30)]
    )
    [call] = forged.calls
    assert len(call.display or "") == len(call.raised.kind) == len(call.raised.text) == 400
    assert str(call.raised).encode()
    assert forged.lines() == {-(10**30), 10**30}
