"""Every dialect of messages: what is read is the conversation, and nothing is lost in silence."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import dialect_rows as rows
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.messages import message_fields, read_messages
from surefoot.messages.dialects import PART_KINDS, ROLES
from surefoot.records import Message

CASES = settings(max_examples=25, deadline=None)


def read(conversation: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    left_out = Counter[str]()
    messages = [Message.model_validate(row) for row in read_messages(conversation, None, left_out.update)]
    assert not left_out
    return [
        (
            message.role,
            message.content,
            message.readable_reasoning,
            [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls],
            message.tool_call_id,
            message.error is True,
        )
        for message in messages
    ]


@pytest.mark.parametrize("name", rows.DIALECTS)
@CASES
@given(turns=st.lists(rows.turns(), min_size=1, max_size=2))
def test_a_conversation_is_the_same_in_every_dialect(name, turns):
    conversation = [row for turn in turns for row in rows.DIALECTS[name](turn)]
    with_reasoning = name not in rows.WITHOUT_REASONING
    assert read(conversation) == [
        row for turn in turns for row in rows.expected(turn, reasoning=with_reasoning)
    ]


@CASES
@given(turn=rows.turns(), kind=rows.TEXTS, where=st.integers(0, 3))
def test_parts_of_unknown_types_are_refused_by_name_or_counted(turn, kind, where):
    kind = f"x-{kind}"
    conversation = rows.anthropic(turn)
    content = [{"type": "text", "text": "a"}, {"type": kind, "words": "b"}]
    conversation.insert(where, {"role": "assistant", "content": content})
    with pytest.raises(ValueError, match=f"message {where}: .*x-"):
        read_messages(conversation)
    left_out = Counter[str]()
    read_messages(conversation, None, lambda name: left_out.update([name]))
    assert left_out.total() == 1
    assert "x-" in next(iter(left_out))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.sampled_from(sorted({*PART_KINDS, *ROLES})),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["role", "type", "content", "parts", "tool_calls", "name", "id", "text",
                                       "function", "input", "output", "error", "from", "value", "message",
                                       "kwargs", "lc", "reasoning", "source", "image_url", *PART_KINDS]),
                      inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(CASES, max_examples=300)
@given(row=JSON)
def test_any_json_is_read_or_refused(row):
    for leave_out in (None, lambda _: None):
        try:
            fields = read_messages([row], None, leave_out)
            messages = [Message.model_validate(each) for each in fields]
        except ValueError:
            continue
        for message in messages:
            assert Message.model_validate_json(message.model_dump_json()) == message


def test_a_message_of_the_record_stays_as_it_is():
    row = {"role": "assistant", "content": "a", "tool_calls": [{"name": "f", "arguments": "{"}], "name": None}
    assert message_fields(row) is row
    with pytest.raises(ValueError, match="2 messages in one"):
        message_fields({"role": "tool", "content": [{"type": "tool_result", "tool_use_id": "a"}] * 2})


def test_values_of_any_depth_are_refused():
    deep: Any = "a"
    for _ in range(5_000):
        deep = [deep]
    for content in (
        deep,
        [{"type": "text", "text": deep}],
        [{"type": "tool_result", "content": {"a": deep}}],
    ):
        with pytest.raises(ValueError, match=r"message 0: .*(recursion|unknown shape|not supported)"):
            read_messages([{"role": "user", "content": content}])


def test_equal_calls_without_ids_stay_two():
    call = {"function": {"name": "f", "arguments": "{}"}}
    [message] = read_messages([{"role": "assistant", "tool_calls": [call, call]}])
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize(
    ("part", "kind", "uri"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x/a.png"}}, "image", "http://x/a.png"),
        ({"type": "input_image", "image_url": "http://x/a.png"}, "image", "http://x/a.png"),
        ({"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}, "image", "http://x/a.png"),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "YQ=="}},
            "image",
            None,
        ),
        ({"image": {"format": "png", "source": {"bytes": "YQ=="}}}, "image", None),
        ({"inlineData": {"mimeType": "audio/wav", "data": "YQ=="}}, "audio", None),
        ({"fileData": {"mimeType": "video/mp4", "fileUri": "gs://a"}}, "file", "gs://a"),
        ({"type": "file", "mediaType": "image/png", "url": "http://x/a.png"}, "image", "http://x/a.png"),
        ({"type": "input_audio", "input_audio": {"data": "YQ==", "format": "wav"}}, "audio", None),
        ({"type": "blob", "modality": "image", "mime_type": "image/png", "content": "YQ=="}, "image", None),
        ({"type": "document_url", "document_url": "http://x/a.pdf"}, "file", "http://x/a.pdf"),
    ],
)
def test_attachments_of_every_dialect(part, kind, uri):
    [message] = read_messages([{"role": "user", "content": [{"type": "text", "text": "See"}, part]}])
    [attachment] = Message.model_validate(message).attachments
    assert (attachment.kind, attachment.at) == (kind, 3)
    if uri is not None:
        assert attachment.uri == uri
        return
    assert attachment.uri == f"data:{attachment.media_type or 'application/octet-stream'};base64,YQ=="
    assert attachment.sha256 == "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
