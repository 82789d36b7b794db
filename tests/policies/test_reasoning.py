"""Reasoning that servers return apart from the text, in every form that they have for it."""

from __future__ import annotations

import asyncio

import pytest
from openai_server import Reply, chat, serve
from openai_streams import HI, stream
from test_openai_stream import written

from surefoot.answers import AnswerChecker, Grader
from surefoot.policies.episodes import sample_traces
from surefoot.policies.openai import OpenAIPolicy
from surefoot.policies.openai_requests import openai_message
from surefoot.records import Attachment, Message, Problem, Reasoning
from surefoot.segment import trace_blocks

VISIBLE = "Two and two.\n\nWait, that is 4."
GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
CASES = [
    ({"reasoning_content": VISIBLE}, None, Reasoning(text=VISIBLE)),
    ({"reasoning": VISIBLE}, 40, Reasoning(text=VISIBLE, tokens=40)),
    (
        {
            "reasoning": "In short.",
            "reasoning_details": [{"type": "reasoning.summary", "summary": "In short."}],
        },
        40,
        Reasoning(text="In short.", visibility="summarised", tokens=40),
    ),
    (
        {"reasoning_details": [{"type": "reasoning.text", "text": VISIBLE}]},
        None,
        Reasoning(text=VISIBLE),
    ),
    (
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAAAA"}]},
        40,
        Reasoning(text="gAAAA", visibility="encrypted", tokens=40),
    ),
    ({}, 40, Reasoning(visibility="withheld", tokens=40)),
    ({"reasoning_content": None}, None, None),
    ({"reasoning_content": ""}, 0, None),
]


def answer(message, tokens, text="Answer: 4"):
    body = chat([text], **message)
    if tokens is not None:
        body["usage"]["completion_tokens"] += tokens
        body["usage"]["completion_tokens_details"] = {"reasoning_tokens": tokens}
    return body


@pytest.mark.parametrize(("message", "tokens", "reasoning"), CASES)
def test_reasoning_is_captured_whole_and_streamed(message, tokens, reasoning):
    body = answer(message, tokens)
    with serve(lambda _: Reply(payload=body)) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, mode="chat", api_key="k", max_retries=0)
        [whole] = asyncio.run(policy.sample([HI]))
    streamed, shown, _ = stream(lambda asked: written(asked, body), mode="chat")
    for result in (whole, streamed):
        assert result.error is None
        [completion] = result.completions
        assert (completion.text, completion.reasoning) == ("Answer: 4", reasoning)
        assert completion.tokens == 2 + (tokens or 0)
    assert "".join(text for _, text in shown) == "Answer: 4"


def traces(message, tokens, text="Answer: 4"):
    with serve(lambda _: Reply(payload=answer(message, tokens, text))) as server:
        policy = OpenAIPolicy(model="m", base_url=server.url, mode="chat", api_key="k", max_retries=0)
        [[trace]] = asyncio.run(
            sample_traces(
                policy, [Problem(text="2 + 2?", answer="4")], n=1, seed=0, segmenter=None, grader=GRADER
            )
        )
    return trace


def test_visible_reasoning_is_part_of_the_trace_and_not_graded():
    trace = traces({"reasoning_content": "Perhaps 5. Answer: 5"}, 40)
    assert trace.text == "<think>\nPerhaps 5. Answer: 5\n</think>\n\nAnswer: 4"
    assert [step.kind for step in trace.steps] == ["reasoning", "final_answer"]
    assert (trace.answer, trace.outcome, trace.reasoning) == ("4", True, None)
    assert trace.usage.completion_tokens == 42


def test_what_is_withheld_is_in_the_record_with_its_tokens():
    trace = traces({}, 40)
    assert (trace.text, trace.reasoning) == ("Answer: 4", Reasoning(visibility="withheld", tokens=40))
    assert [str(block) for block in trace_blocks(trace)] == ["reasoning (withheld, 40 tokens)", "Answer: 4"]


def test_images_and_reasoning_are_sent_to_servers_in_their_place():
    image = Attachment(kind="image", uri="data:image/png;base64,iVBORw0KGgo=", at=5)
    gone = Attachment(kind="file", name="notes.pdf", at=10)
    message = Message(role="user", content="Look. What?", attachments=(image, gone))
    assert openai_message(message)["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "text", "text": " What"},
        {"type": "text", "text": "[file: notes.pdf]"},
        {"type": "text", "text": "?"},
    ]
    thought = Message(role="assistant", content="4", reasoning=Reasoning(text="2 + 2"))
    assert openai_message(thought)["reasoning_content"] == "2 + 2"
    hidden = thought.model_copy(update={"reasoning": Reasoning(text="gA", visibility="encrypted")})
    assert "reasoning_content" not in openai_message(hidden)
