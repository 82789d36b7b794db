"""Reasoning models through all three APIs: the reasoning has its own place, streamed or not; answers vote."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_server import LineScorer
from openai_server import chat
from test_gateway_dialects import ASKED, QUESTION, dialects

THOUGHT = "Two and three. Maybe 6?\n\nNo, it is 5."
ANSWER = "The answer is 5."


def by_field() -> dict[str, Any]:
    said = chat([ANSWER])
    said["choices"][0]["message"]["reasoning"] = THOUGHT
    return said


def by_old_field() -> dict[str, Any]:
    said = chat([ANSWER])
    said["choices"][0]["message"]["reasoning_content"] = THOUGHT
    return said


def in_content() -> dict[str, Any]:
    return chat([f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"])


def opened_by_the_template() -> dict[str, Any]:
    return chat([f"{THOUGHT}\n</think>\n\n{ANSWER}"])


SERVERS = [by_field, by_old_field, in_content, opened_by_the_template]
every = pytest.mark.parametrize("server", SERVERS)


def options(server: Any) -> dict[str, Any]:
    return {"more": {"reasoning_opened": True}} if server is opened_by_the_template else {}


@every
def test_each_api_has_its_place_for_reasoning(server) -> None:
    with dialects(server(), scorer=LineScorer(), **options(server)) as (_, one, other, _upstream):
        for model in ("tiny", "best-of-n:n=2", "majority:n=2"):
            reply = one.chat.completions.create(model=model, messages=QUESTION).choices[0].message
            assert (reply.content, reply.reasoning, reply.reasoning_content) == (ANSWER, THOUGHT, THOUGHT)
            check(one.responses.create(model=model, input=QUESTION))
            check_blocks(other.messages.create(**{**ASKED, "model": model}, messages=QUESTION))


@every
def test_streams_have_the_same_places(server) -> None:
    with dialects(server(), scorer=LineScorer(), **options(server)) as (_, one, other, _upstream):
        for model in ("tiny", "best-of-n:n=2", "best-of-n:rule=weighted_vote,n=2"):
            pieces = list(one.chat.completions.create(model=model, messages=QUESTION, stream=True))
            deltas = [choice.delta.model_dump() for piece in pieces for choice in piece.choices]
            assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER
            for name in ("reasoning", "reasoning_content"):
                assert "".join(delta.get(name) or "" for delta in deltas) == THOUGHT
            with one.responses.stream(model=model, input=QUESTION) as events:
                check(events.until_done().get_final_response())
            with other.messages.stream(**{**ASKED, "model": model}, messages=QUESTION) as blocks:
                check_blocks(blocks.get_final_message())


def check(response: Any) -> None:
    assert response.output_text == ANSWER
    [thought] = [item for item in response.output if item.type == "reasoning"]
    assert thought.content[0].text == THOUGHT


def check_blocks(message: Any) -> None:
    blocks = {block.type: getattr(block, block.type) for block in message.content}
    assert blocks == {"thinking": THOUGHT, "text": ANSWER}


@every
def test_candidates_have_both_channels_and_steps_in_each(server) -> None:
    with dialects(server(), scorer=LineScorer(), **options(server)) as (_, one, _other, _upstream):
        extra = {"surefoot": {"candidates": "all"}}
        reply = one.chat.completions.create(model="best-of-n:n=2", messages=QUESTION, extra_body=extra)
    [search] = reply.surefoot["searches"]
    for candidate in search["candidates"]:
        assert (candidate["text"], candidate["reasoning"]) == (ANSWER, THOUGHT)
        assert candidate["answer"] == "5"
        parts = [
            (candidate["reasoning"] if step.get("part") == "reasoning" else candidate["text"])[
                step["start"] : step["end"]
            ]
            for step in candidate["steps"]
        ]
        assert parts[-1] == ANSWER
        assert "".join(parts[:-1]).split() == THOUGHT.split()


def test_answers_vote_and_reasoning_does_not() -> None:
    wrong = chat(["<think>So 7. The answer is 7.</think>The answer is 5."])
    right = chat(["<think>Hm.</think>The answer is 7."])
    with dialects(wrong, wrong, right) as (_, one, _other, _upstream):
        reply = one.chat.completions.create(model="majority:n=3", messages=QUESTION)
    assert reply.choices[0].message.content == "The answer is 5."


CUT = ("length", "max_output_tokens", "max_tokens")
FILTERED = ("content_filter", "content_filter", "refusal")
ENDED = ("stop", None, "end_turn")


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("max_tokens", CUT),
        ("incomplete", CUT),
        ("length", CUT),
        ("content_filter", FILTERED),
        ("refusal", FILTERED),
        ("end_turn", ENDED),
        ("stop", ENDED),
    ],
)
def test_an_ending_is_told_in_the_words_of_each_api(word: str, words: Any) -> None:
    with dialects(chat(["so we get 3"], finish=word), scorer=LineScorer()) as (_, one, other, _upstream):
        for model in ("tiny", "best-of-n:n=2"):
            extra = {"surefoot": {"candidates": "all"}}
            reply = one.chat.completions.create(model=model, messages=QUESTION, extra_body=extra)
            response = one.responses.create(model=model, input=QUESTION)
            message = other.messages.create(**{**ASKED, "model": model}, messages=QUESTION)
            details = response.incomplete_details
            told = (reply.choices[0].finish_reason, details and details.reason, message.stop_reason)
            assert told == words
        answers = {candidate["answer"] for candidate in reply.surefoot["searches"][0]["candidates"]}
        assert answers == ({"3"} if words == ENDED else {None})
