"""What the inspection pages show in pictures: competition problems, runs, search trees, requests."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from annotation_site import agent_trace, solutions, text_trace
from inspection_site import NOON, Inspection, add_trees
from program_trace import failing_program
from screenshot_requests import add_requests

from surefoot.records import Evidence, Message, Problem, StepLabel, StepScores, ToolCall, Trace
from surefoot.rl.log import Alarm, EvaluationRow, RLLog, Shape, UpdateRow
from surefoot.search.saved_tree import SavedNode, SavedTree
from surefoot.segment import segment_trace
from surefoot.stats.intervals import Interval

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
    """A project with three scorers and labels of every source; runs, trees, requests."""
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
    _runs(found.runs)
    add_trees(
        found.runs / "search" / "beam.trees.jsonl", _tree(cubes), _tree(paths, outcome=False, answer="18")
    )
    add_requests(found.db, cubes, traces[:3], _tree(cubes))
    sums, program, judged = failing_program()
    db.traces.add_problems(project, [sums])
    db.traces.add_traces(project, [program])
    db.labels.import_labels(project, judged)
    base, file = f"/projects/{project}", "search/beam.trees.jsonl"
    return {
        "traces": ("admin", f"{base}/traces"),
        "trace": ("admin", f"{base}/trace?id={traces[1].id}"),
        "trace-agent": ("admin", f"{base}/trace?id={traces[6].id}"),
        "trace-program": ("admin", f"{base}/trace?id={program.id}"),
        "problems": ("admin", f"{base}/problems"),
        "problem": ("admin", f"{base}/problem?id={cubes.id}"),
        "formats": ("admin", f"{base}/formats"),
        "runs": ("admin", "/runs"),
        "run": ("admin", "/run?name=competition/grpo-prm"),
        "trees": ("admin", "/trees"),
        "tree-list": ("admin", f"/tree-list?file={file}"),
        "tree": ("admin", f"/tree?file={file}&number=0"),
        "requests": ("admin", "/requests?model=policy-7b/best-of-4"),
        "request": ("admin", "/request?id=chatcmpl-shown-0"),
        "request-tree": ("admin", "/request-tree?id=chatcmpl-shown-0&choice=0"),
        "held": ("admin", "/held?state=all"),
        "monitor": ("admin", "/monitor"),
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
        for scorer in ("prm-7b", "judge-32b", "Qwen/Qwen2.5-Math-PRM-7B"):
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


def _runs(folder: Path) -> None:
    """An RL run of 200 updates that a guard stopped, one that has just begun, and one that trained a PRM."""
    draw = random.Random(3)
    log = RLLog(stopped="guard 'length': solutions are 2.4 times as long as at the start, for 10 updates")
    for n in range(1, 201):
        up = 1 - math.exp(-n / 60)
        log.updates.append(
            UpdateRow(
                update=n,
                samples=64 * n,
                outcome=min(1, max(0, 0.25 + 0.4 * up + draw.gauss(0, 0.05))),
                proxy=0.4 + 0.5 * up + draw.gauss(0, 0.02),
                reward=0.1 + 0.5 * up + draw.gauss(0, 0.05),
                advantage_mean=draw.gauss(0, 1e-3),
                advantage_std=1.0,
                loss=0.02 * math.exp(-n / 80) + draw.gauss(0, 2e-3),
                kl=2e-4 * n,
                clipped=0.01,
                entropy=1.2 * math.exp(-n / 150),
                gradient_norm=0.4 + abs(draw.gauss(0, 0.1)),
                learning_rate=1e-6 * min(1, n / 20),
                shape=Shape(traces=64, tokens=180 + n * 1.3, steps=6 + n / 50),
            )
        )
        if n % 20 == 0 or n == 1:
            middle = 0.3 + 0.35 * up
            log.evaluations.append(
                EvaluationRow(
                    update=n,
                    samples=64 * n,
                    problems=200,
                    accuracy=Interval(value=middle, low=middle - 0.06, high=middle + 0.06),
                    proxy=Interval(value=0.5 + 0.4 * up, low=0.47 + 0.4 * up, high=0.53 + 0.4 * up),
                )
            )
    log.alarms.append(
        Alarm(
            name="length",
            update=170,
            raised=180,
            measured=2.4,
            threshold=2.0,
            message="solutions grow longer while the accuracy stands still; so lower the reward of a step",
        )
    )
    run = folder / "competition" / "grpo-prm"
    log.write_curves(run / "curves.jsonl")
    config = {"seed": 0, "algorithm": "grpo", "credit": "min-form", "updates": 400}
    (run / "rl.json").write_text(
        RLLog(alarms=log.alarms, stopped=log.stopped)
        .model_dump_json()
        .join((f'{{"config": {str(config).replace(chr(39), chr(34))}, "log": ', "}"))
    )
    begun = folder / "competition" / "ppo-outcome-only"
    begun.mkdir()
    (begun / "curves.jsonl").write_text('{"kind": "update", "update": 1, "loss": 0.7}\n')
    trained = folder / "prm-7b"
    trained.mkdir()
    (trained / "training.json").write_text('{"config": {"seed": 0}, "examples": 12800}')


def _tree(problem: Problem, **fields: Any) -> SavedTree:
    """A beam of width 2, three next steps of each, four steps deep."""
    draw = random.Random(1)
    nodes = [SavedNode(id=0, parent=None, depth=0, text="")]
    beam = [0]
    chosen: list[int] = []
    for depth, text in enumerate(_STEPS[1:], start=1):
        below: list[SavedNode] = []
        for parent in beam:
            for branch in range(3):
                score = round(min(0.99, max(0.03, draw.gauss(0.75 - 0.15 * branch, 0.1))), 3)
                wrong = _SLIP[min(depth, 2)]
                below.append(
                    SavedNode(
                        id=len(nodes) + len(below),
                        parent=parent,
                        depth=depth,
                        text=text if branch == 0 else wrong,
                        score=score,
                        value=score,
                        seen=1 + (branch == 0),
                        tokens=20 + 7 * branch,
                        finish="stop" if depth == 4 else None,
                    )
                )
        nodes += below
        beam = [node.id for node in sorted(below, key=lambda node: -(node.score or 0))[:2]]
    at: int | None = beam[0]
    while at:
        chosen.insert(0, at)
        at = nodes[at].parent
    about = {
        "problem_id": problem.id,
        "problem": problem.text,
        "method": "beam-2x3",
        "seed": 0,
        "answer": "133",
        "outcome": True,
    }
    return SavedTree(**{**about, "nodes": tuple(nodes), "chosen": tuple(chosen), **fields})
