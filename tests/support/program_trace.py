"""A program that fails, with the labels of the verifier ``repair``."""

from __future__ import annotations

from surefoot.records import Evidence, Execution, Problem, StepLabel, Trace
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
    """The loop subtracts, in step 4; its label has the repair, and a test that raised."""
    hidden = {"name": "assert 1", "code": "assert total([1, 2, 3], 1) == 5", "visibility": "hidden"}
    task = {"entry_point": "total", "prompt": PROMPT, "reference": REFERENCE, "tests": [hidden]}
    problem = Problem(id="total", text=PROMPT, meta={"code": task})
    program = REFERENCE.replace("result += number", wrong)
    trace = segment_trace(
        Trace(problem_id="total", text=program, policy="coder-1b", outcome=False), segmenter("python")
    )
    execution = Execution(
        repair="-            result -= number\n+            result += number",
        test="assert total('<script>alert(1)</script>', 0) == 0",
        result="raised: TypeError: <script>alert(1)</script>",
    )
    labels = [
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind="correctness",
            value=-1 if step == 3 else 1,
            source="repair",
            evidence=Evidence(execution=execution if step == 3 else None),
        )
        for step in range(4)
    ]
    return problem, trace, labels
