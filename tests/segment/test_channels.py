"""Reasoning and answer of one text: no tag is left, streams only grow, and steps keep their characters."""

from __future__ import annotations

from os.path import commonprefix

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.segment import ChannelReader, channels_of

PIECES = st.lists(st.sampled_from(["<think>", "</think>", "a", "b c", "\n", " ", "<", "<thi", "nk>"])).map(
    "".join
)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("It is 4.", "", "It is 4."),
        ("<think>\nMaybe 3.\n</think>\n\nIt is 4.", "Maybe 3.", "It is 4."),
        ("\n<think>Maybe 3.</think>It is 4.", "Maybe 3.", "It is 4."),
        ("Maybe 3.\n</think>\n\nIt is 4.", "Maybe 3.", "It is 4."),
        ("<think>Maybe 3.", "Maybe 3.", ""),
        ("<think>\n\n</think>\n\nIt is 4.", "", "It is 4."),
        ("<think>a</think>b\n<think>c</think>\nd", "a\n\nc", "b\nd"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("  It is 4.\n", "", "  It is 4.\n"),
    ],
)
def test_channels(text, reasoning, answer):
    found = channels_of(text)
    assert (found.reasoning, found.answer) == (reasoning, answer)


def test_a_prompt_may_have_opened_the_reasoning():
    assert channels_of("Maybe 3.", inside=True).reasoning == "Maybe 3."
    assert channels_of("a</think>b", inside=False).answer == "ab"


@given(PIECES, st.booleans())
def test_no_tag_is_left_in_the_answer(text, inside):
    for found in (channels_of(text), channels_of(text, inside=inside)):
        parts = [text[start:end] for start, end in found.answer_spans]
        assert not any(tag in part for part in parts for tag in ("<think>", "</think>"))
        assert "".join(parts) == found.answer


@given(st.lists(PIECES), st.booleans())
def test_a_stream_shows_all_that_nothing_can_change_any_more(parts, inside):
    reader, text, shown = ChannelReader(inside=inside), "", ("", "")
    for part in parts:
        text += part
        shown = tuple(map("".join, zip(shown, reader.add(part), strict=True)))
        ends = [
            text + more
            for more in (
                "",
                "a",
                " </think>",
                "<think>",
                "think>b",
                "ink>b",
                "/think>",
                "hink>",
                "nk> ",
                ">c",
            )
        ]
        ends += [f"{end}</think>c<think>d" for end in ends] + [f"{end}<think>d</think>e" for end in ends]
        whole = [channels_of(end, inside=inside) for end in ends]
        assert shown[0] == commonprefix([found.reasoning for found in whole])  # noqa: RUF071
        # white space alone is an answer only where it is the whole text
        answers = [found.answer for found in whole if not found.answer.isspace()]
        assert shown[1] == commonprefix(answers)  # noqa: RUF071


@given(PIECES, st.data())
def test_a_span_keeps_its_characters(text, data):
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    found = channels_of(text)
    placed = found.place(start, end)
    visible = [at for a, b in (*found.answer_spans, *found.reasoning_spans) for at in range(a, b)]
    assert (placed is None) == (not set(visible) & set(range(start, end)))
    if placed is not None and len(found.answer_spans) < 2 and len(found.reasoning_spans) < 2:
        first, last, thought = placed
        assert (found.reasoning if thought else found.answer)[first:last] in text[start:end]
