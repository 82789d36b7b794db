from __future__ import annotations

from pathlib import Path

import pytest

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.runs import (
    BlamedRun,
    blamed_runs,
    evaluate_who_and_when,
    who_and_when_section,
)
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.report import Report
from surefoot.evaluation.splits import half_of
from surefoot.evaluation.step_scores import System, labelled_system, scored_system
from surefoot.protocols import LabelledTrace
from surefoot.records import Message, Problem, StepLabel, StepScores, Trace
from surefoot.segment.traces import segment_trace

HALVES = [[f"p{n}" for n in range(40) if half_of(f"p{n}") == half] for half in (0, 1)]


def blamed(name: str, problem: str, speakers: str, step: int, agent: str = "") -> BlamedRun:
    """Speakers by letter; ``.`` is a person."""
    names = tuple(None if letter == "." else letter for letter in speakers)
    return BlamedRun(
        trace_id=name,
        problem_id=problem,
        subset="s",
        step=step,
        agent=agent or names[step] or "",
        speakers=names,
    )


RUNS = [
    blamed("r0", HALVES[0][0], ".abbb", 3),
    blamed("r1", HALVES[1][0], ".aba", 2),
    blamed("r2", HALVES[1][1], "ab", 0, agent="b"),  # the one who speaks there is not the one to blame
]


def rates(result: Measured, system: str) -> list[float]:
    """Agent, step, within one step."""
    (found,) = [one.subsets["s"] for one in result.scores if one.system == system]
    return [pytest.approx(3 * one.value) for one in (found.agent, found.within[0], found.within[1])]


def traces() -> list[Trace]:
    return [
        segment_trace(
            Trace(
                id=run.trace_id,
                problem_id=run.problem_id,
                messages=tuple(Message(role="assistant", content="x", name=name) for name in run.speakers),
            ),
            granularity="message",
        )
        for run in RUNS
    ]


def judge() -> System:
    """Right in r0; in r1 its first bad step is one too early; nothing said of r2."""
    steps = {"r0": [1, 1, 1, -1, -1], "r1": [1, -1, -1, 1]}
    labels = [
        StepLabel(trace_id=name, step=step, kind="correctness", value=value, source="judge")
        for name, values in steps.items()
        for step, value in enumerate(values)
    ]
    return labelled_system("judge", labels, traces())


def test_judges_and_scorers_by_hand():
    records = [
        StepScores(trace_id="r0", scorer="s", scores=(0.0, 0.5, 0.4, 0.1, 0.1)),  # a person is not blamed
        StepScores(trace_id="r1", scorer="s", scores=(None, 0.5, 0.4, 0.3), unscored_reason="?"),
        StepScores.unscored(traces()[2], "s", "long"),
    ]
    result = evaluate_who_and_when(RUNS, [judge(), scored_system("scorer", records, traces())], draws=20)
    assert rates(result, "judge") == [1, 1, 2]
    assert rates(result, "scorer") == [1, 1, 2]
    assert [one.subsets["s"].missing for one in result.scores[-2:]] == [1, 1]
    assert (result.runs, result.other_speaker) == ({"s": 3}, 1)


def test_baselines_by_hand():
    result = evaluate_who_and_when(RUNS, [], draws=20)
    assert rates(result, "first step") == [0, 1, 2]
    assert rates(result, "last step") == [2, 0, 3]
    # b, a, a: of equals the first to speak; at steps 2, 1 and 0
    assert rates(result, "first step of who speaks most") == [1, 1, 3]
    # b is blamed most in both halves; its first steps are 2, 2 and 1
    assert rates(result, "first step of who is blamed most elsewhere") == [3, 1, 3]
    expected = [1 / 2 + 1 / 2 + 1 / 2, 1 / 4 + 1 / 3 + 1 / 2, 3 / 4 + 3 / 3 + 2 / 2]
    assert rates(result, "random agent, random step") == expected


def labelled(trace: Trace, **more: object) -> LabelledTrace:
    wrong = StepLabel(trace_id=trace.id, step=1, kind="correctness", value=-1, source="human")
    return LabelledTrace(problem=Problem(id=trace.problem_id, text="?"), trace=trace, labels=(wrong,), **more)


def test_names_are_compared_without_case_and_addition():
    messages = (
        Message(role="user", content="?"),
        Message(role="assistant", content="x", name="WebSurfer (thought)"),
    )
    trace = Trace(problem_id="p", messages=messages, meta={"who_and_when": {"mistake_agent": "Websurfer"}})
    item = labelled(segment_trace(trace, granularity="message").model_copy(update={"steps": ()}))
    with pytest.raises(LabelError, match="lacks a step labelled −1, or names of agents"):
        blamed_runs({"s": [item]})
    steps = segment_trace(trace, granularity="message").steps
    whole = trace.model_copy(update={"steps": (steps[0].model_copy(update={"message": 0, "end": 1}), *steps)})
    (run,) = blamed_runs({"s": [labelled(whole)]})
    assert (run.agent, run.speakers) == ("websurfer", (None, "websurfer"))
    with pytest.raises(LabelError, match="occurs twice"):
        blamed_runs({"s": [labelled(whole)] * 2})


def test_report(tmp_path: Path):
    section = who_and_when_section(evaluate_who_and_when(RUNS, [judge()], draws=20))
    report = Report("r").section(section).write(tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "baseline: first step of who speaks most" in text
    assert "In 1 run the agent to blame does not speak" in text
    title, about, *tables = report.printed
    assert (title, about) == ("\nWho&When", section.about)
    assert [table.caption.split(":")[0] for table in tables] == [
        "",
        "runs",
        "systems",
        "systems, counts",
        "systems, usage",
        "scores, subsets",
        "scores, subsets, within",
    ]
    with pytest.raises(LabelError, match="give at least one run"):
        evaluate_who_and_when([], [])
