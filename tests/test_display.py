"""How records and scored traces are shown to people."""

from __future__ import annotations

import pytest

from surefoot.display import show
from surefoot.errors import ScoreError
from surefoot.records import Message, Problem, Step, StepLabel, StepScores, ToolCall, Trace, content_id

TRACE = Trace(
    id="t", problem_id="p", text="7 + 3 = 0\n<b> = 2\n", steps=(Step(start=0, end=10), Step(start=10, end=18))
)


def scores(*values: float | None) -> StepScores:
    return StepScores(
        trace_id="t", scorer="prm", scores=values, unscored_reason="cut" if None in values else None
    )


def test_steps_are_numbered_from_1_and_a_low_score_is_not_called_an_error() -> None:
    assert str(show(TRACE, scores(0.9, 0.2))).splitlines() == [
        "t: 2 steps, no answer, not graded, scored by prm",
        "  1  0.900  7 + 3 = 0",
        "  2  0.200  <b> = 2  ▽ first score below 0.5",
    ]


def test_a_text_is_cut_as_it_is_scored() -> None:
    assert show("7 + 3 = 0\n<b> = 2\n", scores(0.9, 0.2)).first_below == 1
    with pytest.raises(ScoreError, match="do not fit the 1 steps"):
        show("one step", scores(0.9, 0.2))


def test_without_a_low_score_nothing_is_marked() -> None:
    view = show(TRACE, scores(0.9, None), threshold=0.3)
    assert view.first_below is None
    assert "n/a" in str(view)
    assert "▽" not in str(view)


def test_scores_of_another_trace_are_refused() -> None:
    with pytest.raises(ScoreError, match="1 scores of trace t do not fit the 2 steps"):
        show(TRACE, scores(0.5))


def test_a_step_that_only_calls_a_tool_shows_the_call() -> None:
    call = ToolCall(name="search", arguments='{"q": "x"}')
    messages = (Message(role="user", content="hi"), Message(role="assistant", tool_calls=(call,)))
    run = Trace(problem_id="p", messages=messages, steps=(Step(message=1, start=0, end=0, part="message"),))
    assert 'search({"q": "x"})' in str(show(run))


def test_records_read_as_one_line() -> None:
    problem = Problem(id="p", text="word " * 40, answer="7")
    assert repr(problem).startswith("<Problem p: word word")
    assert repr(problem).endswith("… (answer 7)>")
    label = StepLabel(trace_id="t", step=1, kind="correctness", value=-1, source="checker")
    assert str(label) == "t step 2: correctness -1, from checker"
    assert str(scores(0.5, None)) == "t by prm: 0.500 n/a"


def test_identity_rests_on_the_whole_record_and_not_on_what_is_shown() -> None:
    first, second = (Problem(id="p", text="word " * 40 + end) for end in "ab")
    assert str(first) == str(second)
    assert content_id(first) != content_id(second)


def test_the_answer_that_is_there_is_shown() -> None:
    assert "answer 3" in str(show("4 - 1 = 3\nAnswer: 3\n"))
    assert "answer 9" in str(show(r"so it is \boxed{9}"))
    assert "no answer" in str(show("4 - 1 = 3\n"))


def test_a_notebook_shows_a_table_and_escapes_the_text() -> None:
    html = show(TRACE, scores(0.9, 0.2))._repr_html_()
    assert html.count("<tr>") == 2
    assert "&lt;b&gt; = 2" in html
    assert html.count("<b>") == 1  # the first low score
