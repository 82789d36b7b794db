"""A trace without hidden reasoning: nothing hidden is left, and the other steps keep their texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surefoot.records import Message, Reasoning, ToolCall, Trace
from surefoot.segment import Line, reasoning_spans, segment_trace, visible_part

PIECES = st.lists(st.sampled_from(["<think>", "</think>", "a", "b c", "\n", " ", "2 + 2 = 4\n"])).map("".join)


def cut(text: str) -> Trace:
    return segment_trace(Trace(problem_id="p", text=text), Line())


def texts(trace: Trace) -> list[str]:
    return [trace.step_text(step) for step in range(len(trace.steps))]


def test_steps_of_reasoning_are_left_out_and_the_others_move():
    whole = cut("First\n<think>\nsecret\nplan\n</think>\n\n2 + 2 = 4\nAnswer: 4\n")
    part = visible_part(whole)
    assert part.trace.text == "First\n2 + 2 = 4\nAnswer: 4\n"
    assert texts(part.trace) == ["First\n", "2 + 2 = 4\n", "Answer: 4\n"]
    assert [whole.step_text(step) for step in part.steps] == texts(part.trace)
    assert part.trace.id == whole.id


def test_a_trace_without_reasoning_is_the_same_object():
    whole = cut("2 + 2 = 4\nAnswer: 4\n")
    assert visible_part(whole).trace is whole
    assert visible_part(whole).steps == (0, 1)


def test_a_prompt_may_have_opened_reasoning_that_never_ends():
    whole = cut("Maybe 3.\nOr 4.\n")
    assert visible_part(whole, opened=True).trace.text == ""
    assert visible_part(whole, opened=True).steps == ()
    assert visible_part(cut("Maybe 3.\n</think>\nIt is 4.\n"), opened=True).trace.text == "It is 4.\n"


def test_fields_and_tags_of_messages_go_and_calls_stay():
    call = ToolCall(name="find", arguments='{"q": 1}')
    whole = segment_trace(
        Trace(
            problem_id="p",
            messages=(
                Message(role="user", content="<think>the user's own</think>"),
                Message(
                    role="assistant",
                    content="<think>a plot</think>I look.",
                    reasoning=Reasoning(text="secret"),
                    tool_calls=(call,),
                ),
                Message(role="tool", content="found"),
            ),
        )
    )
    part = visible_part(whole)
    assert [step.part for step in part.trace.steps] == ["content", "tool_call"]
    assert texts(part.trace) == ["I look.", str(call)]
    assert part.trace.messages[0] == whole.messages[0]
    assert "secret" not in part.trace.model_dump_json()
    assert "plot" not in part.trace.model_dump_json()
    summarised = Trace(problem_id="p", text="x", reasoning=Reasoning(text="short", visibility="summarised"))
    assert visible_part(summarised).trace.reasoning is None


@given(PIECES)
def test_each_step_keeps_what_is_not_hidden(text):
    whole = cut(text)
    hidden = {at for first, last in reasoning_spans(text) for at in range(first, last)}
    part = visible_part(whole)
    assert part.trace.text == "".join(letter for at, letter in enumerate(text) if at not in hidden)
    for number, left in zip(part.steps, texts(part.trace), strict=True):
        step = whole.steps[number]
        assert left == "".join(text[at] for at in range(step.start, step.end) if at not in hidden)
    lost = set(range(len(whole.steps))) - set(part.steps)
    assert all(set(range(whole.steps[at].start, whole.steps[at].end)) <= hidden for at in lost)
