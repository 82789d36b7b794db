"""A program that fails, with the label that a run beside the reference's gave it."""

from __future__ import annotations

from typing import Any

from surefoot.records import ComparedCall, Evidence, ExecutedLine, Execution, Problem, StepLabel, Trace
from surefoot.segment import segment_trace, segmenter

PROMPT = 'def total(numbers, least):\n    """Sum of the numbers above least."""\n'
REFERENCE = """\
    result = 0
    for number in numbers:
        if number > least:
            result += number
    return result
"""


def failing_program(wrong: str = "result -= number") -> tuple[Problem, Trace, list[StepLabel]]:
    """The loop subtracts, in step 4; its label has two calls, of which the second raised."""
    hidden = {"name": "assert 1", "code": "assert total([1, 2, 3], 1) == 5", "visibility": "hidden"}
    task = {"entry_point": "total", "prompt": PROMPT, "reference": REFERENCE, "tests": [hidden]}
    problem = Problem(id="total", text=PROMPT, meta={"code": task})
    program = REFERENCE.replace("result += number", wrong)
    trace = segment_trace(
        Trace(problem_id="total", text=program, policy="coder-1b", outcome=False), segmenter("python")
    )
    start = [(3, ("result", "0")), (4, ("number", "1")), (5, None), (4, ("number", "2")), (5, None)]
    rows = [(_line(line, changed), _line(line, changed)) for line, changed in start]
    rows += [
        (_line(6, ("result", "-2")), _line(6, ("result", "2"))),
        (_line(4, ("number", "3")), _line(4, ("number", "3"))),
        (_line(5, None), _line(5, None)),
        (_line(6, ("result", "-5")), _line(6, ("result", "5"))),
        (_line(4, None), _line(4, None)),
        (_line(7, None), _line(7, None)),
        (_returned("-5"), _returned("5")),
    ]
    calls = (
        _call("total([1, 2, 3], 1)", "-5", "5", rows=tuple(rows), first=5),
        _call(
            "total('<script>alert(1)</script>', 0)", None, "0", raised="TypeError: <script>alert(1)</script>"
        ),
    )
    labels = [
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind="correctness",
            value=-1 if step == 3 else 1,
            source="execution-trace",
            evidence=Evidence(execution=Execution(calls=calls) if step == 3 else None),
        )
        for step in range(4)
    ]
    return problem, trace, labels


def _line(line: int, changed: tuple[str, str] | None) -> ExecutedLine:
    return ExecutedLine(line=line, changed=(changed,) if changed else ())


def _returned(value: str) -> ExecutedLine:
    return ExecutedLine(event="return", line=7, said=value)


def _call(call: str, result: str | None, reference: str, **more: Any) -> ComparedCall:
    fields = {"test": "assert 1", "visibility": "hidden", "call": call, "result": result}
    return ComparedCall.model_validate({**fields, "reference_result": reference, **more})
