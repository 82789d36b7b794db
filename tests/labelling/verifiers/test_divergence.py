"""What a program says of its run may be anything: it is read within bounds, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surefoot.labelling.verifiers.execution_trace import Companion, ProgramRun, compare_executions
from surefoot.records import CodeTask, CodeTest, Execution
from surefoot.sandbox import Ending, ProgramResult

PROGRAM = "def f(n):\n    m = n\n    return m\n"
TASK = CodeTask(
    entry_point="f",
    tests=(CodeTest(name="one", code="assert f(1) == 1", visibility="hidden"),),
    reference=PROGRAM,
)
EVENT = ["line", 2, 1, "a", [["m", "1"]]]
CALL = {
    "test": 0,
    "arguments": "((1,), {})",
    "events": [EVENT],
    "result": "x",
    "display": "1",
    "raised": None,
}


def run(**changes: Any) -> ProgramRun:
    said = {"calls": [{**CALL, **changes}], "load": None}
    return ProgramRun.of(ProgramResult(ending=Ending.EXITED, stdout=json.dumps(said).encode()))


def compare(own: ProgramRun, test: int = 0) -> Execution | None:
    companion = Companion(text=None, run=run(), partners={1: 1, 2: 2, 3: 3})
    return compare_executions(TASK, companion, own, [test], lambda line: line)


@pytest.mark.parametrize(
    "changes",
    [
        {"events": [["line", float("inf"), 1, "a", []]]},
        {"events": [["line", float("nan"), 1, "a", []]]},
        {"events": [["jump", 2, 1, "a", []]]},
        {"events": [["line", 2, 1, "a", "abc"]]},
        {"events": [["line", 2, 1, "a", {"m": 1}]]},
        {"events": 7},
        {"test": None},
        {"raised": ["A"]},
        {"events": [[["line"], 2, 1, "a", []]]},
    ],
)
def test_what_is_no_record_of_a_run_says_nothing(changes: dict[str, Any]) -> None:
    assert run(**changes).calls == ()
    assert compare(run(**changes)) is None


def test_texts_names_and_places_are_bounded() -> None:
    forged = run(
        events=[["line", -(10**30), 10**30, "b", [["\ud800" * 900, "v" * 900]] * 40]] * 90,
        result="y",
        display="\x00" * 9_000,
        raised=["E" * 9_000, "t" * 9_000, -(10**30)],
        test=0,
    )
    execution = compare(forged)
    assert execution is not None
    assert len(execution.model_dump_json()) < 200_000
    assert execution.calls[0].first is not None
    for test in (-1, 9):
        assert compare(forged, test) is None


def test_a_run_that_goes_on_after_the_reference_is_shown_whole() -> None:
    longer = run(events=[EVENT, ["line", 3, 1, "c", []], ["return", 3, 1, "d", "2"]], result="y", display="2")
    execution = compare(longer)
    assert execution is not None
    [call] = execution.calls
    assert [own.line for own, _ in call.rows if own] == [2, 3, 3]
    assert (call.result, call.reference_result, call.rows[call.first or 0][0]) == ("2", "1", call.rows[0][0])
