"""What the inspection pages show in pictures: competition problems, requests."""

from __future__ import annotations

import random
from typing import Any

from annotation_site import agent_trace, solutions, text_trace
from inspection_site import NOON, Inspection
from monitored_requests import changed_monitor
from program_trace import failing_program
from screenshot_requests import add_requests

from surefoot.records import Evidence, Message, Problem, StepLabel, StepScores, ToolCall, Trace
from surefoot.segment import segment_trace

Views = dict[str, tuple[str | None, str]]
"""By name: who looks (``None`` = nobody is signed in), and the address."""

_STEPS = (
    "We are told that $x + y = 7$ and $xy = 10$, and asked for $x^3 + y^3$.",
    r"The sum of cubes factors as \[x^3 + y^3 = (x + y)(x^2 - xy + y^2),\] so it is enough to find "
    r"$x^2 + y^2$, and for that the identity $x^2 + y^2 = (x + y)^2 - 2xy$ serves, in which both sums on the "
    r"right are known from the problem.",
    r"Putting in the numbers, $x^2 + y^2 = 7^2 - 2 \cdot 10 = 29$.",
    r"Then $x^2 - xy + y^2 = 29 - 10 = 19$.",
    r"So $x^3 + y^3 = 7 \cdot 19 = \boxed{133}$.",
)
_SLIP = (
    r"Putting in the numbers, $x^2 + y^2 = 7^2 - 10 = 39$.",
    r"Then $x^2 - xy + y^2 = 39 - 10 = 29$.",
    r"So $x^3 + y^3 = 7 \cdot 29 = \boxed{203}$.",
)
_OTHER = (
    "The number of paths from one corner of a $4 \\times 3$ grid to the other is $\\binom{7}{3} = 35$.",
    r"Of these, $\binom{4}{2} \cdot \binom{3}{1} = 18$ pass through the point $(2, 2)$.",
    "So $35 - 18 = 17$ avoid it.",
)


def inspected(found: Inspection) -> Views:
    """A project with three scorers and labels of every source; requests."""
    db = found.db
    project = db.projects.create("Competition problems").id
    cubes = Problem(text="If $x + y = 7$ and $xy = 10$, what is $x^3 + y^3$?", answer="133", source="algebra")
    paths = Problem(
        text="How many shortest paths lead from $(0, 0)$ to $(4, 3)$ without passing through $(2, 2)$?",
        answer="17",
        source="counting",
    )
    capital = solutions()[0][1]
    traces = [
        text_trace(cubes, *_STEPS, answer="133", outcome=True, policy="policy-7b", sample=0),
        text_trace(cubes, *_STEPS[:2], *_SLIP, answer="203", outcome=False, policy="policy-7b", sample=1),
        text_trace(cubes, *_SLIP, answer="203", outcome=False, policy="policy-7b", sample=2),
        text_trace(cubes, _STEPS[0], "I cannot go on.", policy="policy-7b", sample=3),
        text_trace(paths, *_OTHER, answer="17", outcome=True, policy="policy-7b"),
        text_trace(paths, *(f"Step {n}: count again, row {n}." for n in range(1, 31)), policy="policy-1b"),
        _long_agent(capital),
    ]
    db.traces.add_problems(project, [cubes, paths, capital])
    db.traces.add_traces(project, traces)
    _score(found, project, traces)
    _judge(found, project, traces[1])
    add_requests(found.db, cubes, traces[:3])
    sums, program, judged = failing_program()
    db.traces.add_problems(project, [sums])
    db.traces.add_traces(project, [program])
    db.labels.import_labels(project, judged)
    base = f"/projects/{project}"
    found.room.app.state.pages.monitor = changed_monitor()
    return {
        "traces": ("admin", f"{base}/runs"),
        "trace": ("admin", f"{base}/run?id={traces[1].id}"),
        "compare": ("admin", f"{base}/compare?id={traces[0].id}&id={traces[1].id}"),
        "trace-agent": ("admin", f"{base}/run?id={traces[6].id}"),
        "trace-program": ("admin", f"{base}/run?id={program.id}"),
        "reports": ("admin", "/reports"),
        "monitor": ("admin", "/monitor"),
        "requests": ("admin", "/requests?text=model:policy-7b/best-of-16"),
        "request": ("admin", "/request?id=chatcmpl-shown-0"),
        "held": ("admin", "/held?state=all"),
        "held-call": ("admin", "/held/2"),
        "edit": ("admin", f"{base}/run?id={traces[1].id}&edit=1"),
    }


def _long_agent(problem: Problem) -> Trace:
    """An agent's run with two calls, one of them long."""
    short = agent_trace(problem)
    call = ToolCall(id="2", name="python", arguments='{"code": "' + "print(capitals['France']); " * 12 + '"}')
    checked = "To be sure I compare with the list of capitals."
    more = (
        Message(role="assistant", content=checked, tool_calls=(call,)),
        Message(role="tool", content="Paris\n" * 6, tool_call_id="2"),
    )
    messages = (*short.messages[:3], *more, short.messages[3])
    return segment_trace(Trace(problem_id=problem.id, messages=messages, outcome=True, policy="agent-1"))


def _score(found: Inspection, project: int, traces: list[Trace]) -> None:
    draw = random.Random(7)
    rows = []
    for trace in traces:
        for scorer in ("prm-7b", "judge-32b", "example-lab/step-scorer-7b"):
            level = 0.93 if trace.outcome else 0.72
            scores = [
                min(0.99, max(0.02, draw.gauss(level - 0.07 * n, 0.12))) for n in range(len(trace.steps))
            ]
            known: list[float | None] = [round(score, 3) for score in scores]
            if scorer == "judge-32b" and len(known) > 4:
                known[-1] = None
            rows.append(
                StepScores(
                    trace_id=trace.id,
                    scorer=scorer,
                    scores=tuple(known),
                    unscored_reason="the verdict names no step" if None in known else None,
                )
            )
    added = found.db.traces.add_scores(project, rows)
    assert not added.refused, added.reasons


def _judge(found: Inspection, project: int, trace: Trace) -> None:
    def label(step: int, value: float, source: str, **evidence: Any) -> StepLabel:
        kind: Any = "value" if source == "monte-carlo" else "correctness"
        return StepLabel(
            trace_id=trace.id,
            step=step,
            kind=kind,
            value=value,
            source=source,
            evidence=Evidence(**evidence),
            created=NOON,
        )

    because = r"The identity needs $2xy$, and $2 \cdot 10 = 20$; here only $10$ is taken away."
    found.db.labels.import_labels(
        project,
        [
            *(label(step, 1, "human", rater="rater-a") for step in (0, 1)),
            label(2, -1, "human", rater="rater-a"),
            *(label(step, 1, "human", rater="rater-b") for step in (0, 1)),
            label(2, 0, "human", rater="rater-b"),
            label(2, -1, "judge", rater="judge-32b", message=because),
            label(1, 0.875, "monte-carlo", successes=7, trials=8, interval=(0.529, 0.978)),
            label(2, 0.0, "monte-carlo", successes=0, trials=8, interval=(0.0, 0.324)),
        ],
    )
