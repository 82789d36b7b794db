"""Streams of the OpenAI client against a scripted server: the same results, shown while they are written."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_server import Reply, chat, completion, event_bytes, pieces, serve
from openai_streams import HI, joined, policy_of, stream, words

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.errors import PolicyError
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest, Sampling, StreamsText
from surefoot.records import Message, ToolCall

WAIT_S = 30


def written(body, whole, cut=words):
    """A reply that comes as it was asked for."""
    return Reply(events=pieces(whole, cut)) if body.get("stream") else Reply(payload=whole)


# The same as without


@st.composite
def cuts(draw, by=lambda text: text):
    """A function that cuts a text at random places; ``by`` makes a sequence of it."""
    places = draw(st.lists(st.integers(0, 12), max_size=8))

    def cut(text):
        found, rest = [], by(text)
        for size in places:
            found.append(rest[:size])
            rest = rest[size:]
        return [*found, rest]

    return cut


TEXTS = st.lists(
    st.text(st.sampled_from('ab \n\r\u2028\x85é漢🙂\u0301"\\{}'), max_size=30), min_size=3, max_size=3
)


class Answering:
    """A server whose answers each example sets: ``texts`` in turn of the samples' numbers or seeds."""

    def __init__(self, server):
        self.server = server
        server.answer = self.answer

    def answer(self, body):
        kinds = range(body["n"]) if "n" in body else [body["seed"] % 3]
        extra = {**self.extra, "token_ids": list(range(20))} if "n" in body else self.extra
        texts = [self.texts[kind] for kind in kinds]
        made = completion(texts, **extra) if "prompt" in body else chat(texts, **self.message)
        whole = {**made, "choices": [{**choice, **extra} for choice in made["choices"]]}
        if not body.get("stream"):
            return Reply(payload=whole)
        raw = b"".join(map(event_bytes, pieces(whole, self.cut)))
        return Reply(events=[part for part in self.raw(raw) if part])


@pytest.fixture(scope="module")
def answering():
    with serve(lambda body: Reply()) as server:
        yield Answering(server)


@pytest.mark.parametrize("mode", ["chat", "completions"])
@pytest.mark.parametrize("dialect", ["openai", "vllm"])
@settings(max_examples=15, deadline=None)
@given(
    texts=TEXTS,
    cut=cuts(),
    raw=cuts(),
    extra=st.sampled_from(
        [
            {"finish_reason": "stop"},
            {"finish_reason": "length"},
            {"finish_reason": "stop", "stop_reason": "\n"},
            {"finish_reason": "stop", "stop_reason": None},
            {"finish_reason": "stop", "matched_stop": 2},
        ]
    ),
    call=st.none() | st.text(st.sampled_from("a🙂{}"), max_size=6),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_a_stream_gives_what_one_piece_gives(
    answering, mode, dialect, texts, cut, raw, extra, call, temperature
):
    answering.texts, answering.cut, answering.raw, answering.extra = texts, cut, raw, extra
    made = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": call}}] * 2
    answering.message = {} if call is None else {"tool_calls": made}
    sampling = Sampling(stop=("\n",), temperature=temperature)
    request = SampleRequest(prompt="Hi", n=3, first=1, seed=5, sampling=sampling)
    policy = policy_of(answering.server, mode=mode, dialect=dialect)
    shown = []

    async def both():
        streamed = policy.stream(request, lambda number, text: shown.append((number, text)))
        return await asyncio.gather(streamed, policy.sample([request]))

    result, [whole] = asyncio.run(both())
    assert result == whole
    assert result.error is None
    for number, drawn in enumerate(result.completions):
        text = joined(shown, number)
        assert drawn.text in (text, f"{text}\n")
        assert call is None or mode == "completions" or len(drawn.tool_calls) == 2


def test_only_the_fields_of_the_stream_are_sent_beside_the_others():
    request = SampleRequest(prompt="Q: ", prefix="A:", seed=5, sampling=Sampling(stop=("\n\n",)))
    _, _, server = stream(lambda body: written(body, completion(["x"])), request, extra_body={"top_k": 3})
    with serve(lambda body: written(body, completion(["x"]))) as other:
        asyncio.run(policy_of(other, extra_body={"top_k": 3}).sample([request]))
    added = {"stream": True, "stream_options": {"include_usage": True}}
    assert server.seen == [("/v1/completions", other.bodies[0] | added)]
    assert server.keys == {"Bearer key"}


def test_characters_that_are_cut_in_half_are_put_together():
    def halves(text):
        raw = text.encode("utf-16-le")
        return [raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)]

    text = "a🙂漢🙂"
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": "🙂"}'}}
    whole = chat([text], tool_calls=[call])
    events = [f"data: {json.dumps(event)}\n\n".encode() for event in pieces(whole, halves)]
    result, shown, _ = stream(lambda _: Reply(events=events), mode="chat")
    assert result.completions[0].text == joined(shown) == text
    assert [text for _, text in shown] == list(text)
    assert result.completions[0].tool_calls == (ToolCall(id="c", name="f", arguments='{"a": "🙂"}'),)


def test_tool_calls_without_numbers_come_whole():
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    calls = [{"id": f"c{at}", "function": {"name": "f", "arguments": str(at)}} for at in range(2)]
    events = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]} for call in calls
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": usage})
    result, shown, _ = stream(lambda _: Reply(events=events), mode="chat")
    assert [call.arguments for call in result.completions[0].tool_calls] == ["0", "1"]
    assert (result.completions[0].text, result.usage.completion_tokens, shown) == ("", 2, [])


def called(pieces):
    """Id, name and arguments of each call that comes in these pieces."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]} for piece in pieces]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": usage})
    result, _, _ = stream(lambda _: Reply(events=events), mode="chat")
    assert result.error is None
    return [(call.id, call.name, call.arguments) for call in result.completions[0].tool_calls]


def piece(index, id, name, arguments):
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("again", [None, "", "own"], ids=["no id", "empty id", "id again"])
@pytest.mark.parametrize("first", ["", "{"], ids=["name alone", "name and arguments"])
def test_tool_calls_that_all_have_the_number_0_are_told_apart_by_their_ids(again, first):
    rest = "{}"[len(first) :]
    pieces = []
    for id, name in [("c1", "f"), ("c2", "f"), ("c3", "g")]:
        later = id if again == "own" else again
        pieces += [piece(0, id, name, first), *(piece(0, later, None, part) for part in rest)]
    assert called(pieces) == [("c1", "f", "{}"), ("c2", "f", "{}"), ("c3", "g", "{}")]


@pytest.mark.parametrize("id", [None, ""])
def test_without_ids_a_name_after_a_whole_call_begins_the_next(id):
    whole = [piece(0, id, "f", '{"a": 1}'), piece(0, id, "f", '{"a": 2}'), piece(0, id, "g", "")]
    assert [call[1:] for call in called(whole)] == [("f", '{"a": 1}'), ("f", '{"a": 2}'), ("g", "")]
    cut = [piece(0, id, "f", ""), piece(0, id, None, '{"a": '), piece(0, id, None, "1}")]
    assert [call[1:] for call in called(cut * 2)] == [("f", '{"a": 1}')] * 2
    named_again = [piece(0, id, "f", text) for text in ('{"a": {"b"', ": 1}", "}")]
    assert [call[1:] for call in called(named_again)] == [("f", '{"a": {"b": 1}}')]


def test_an_id_without_a_name_begins_a_call_and_arguments_alone_do_not():
    bare = [{"index": 0, "id": "c1"}, piece(0, None, "f", "1"), {"index": 0, "id": "c2"}]
    assert called([*bare, piece(0, None, "g", "2")]) == [("c1", "f", "1"), ("c2", "g", "2")]
    fresh = [piece(0, "a", "f", ""), piece(0, "b", None, "1"), piece(0, "c", None, "2")]
    assert called(fresh) == [("a", "f", "12")]


def test_pieces_of_numbered_calls_may_come_in_any_order():
    pieces = [piece(1, "c1", "f", ""), piece(0, "c0", "g", ""), piece(1, None, None, "1")]
    pieces += [piece(0, None, None, "0"), piece(1, "c1", None, "1")]
    assert called(pieces) == [("c1", "f", "11"), ("c0", "g", "0")]


def test_content_in_parts_and_events_without_choices_are_read():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}
    parts = [{"type": "text", "text": "4"}, {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]
    events = [{"choices": [{"index": 0, "delta": {"content": content}}]} for content in ([thought], parts)]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({"choices": None, "usage": {"prompt_tokens": 7, "completion_tokens": 2}})
    result, shown, _ = stream(lambda _: Reply(events=events), mode="chat")
    (completion,) = result.completions
    assert (completion.text, completion.reasoning.text, joined(shown)) == ("4", "Hm", "4")
    assert completion.tool_calls == (ToolCall(id="c", name="f", arguments='{"a": 1}'),)
    unknown = [{"choices": [{"index": 0, "delta": {"content": [{"type": "hologram"}]}}]}]
    result, _, _ = stream(lambda _: Reply(events=unknown), mode="chat")
    assert "hologram" in result.error


# While it is written


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_text_is_shown_before_the_next_is_written(dialect):
    """The server sends a piece only when the one before it, of each sample, was shown."""
    seen = {(number, text): threading.Event() for number in range(2) for text in ("one ", "two ")}

    def events(body):
        for event in pieces(completion(["one two three"] * body.get("n", 1), token_ids=[1, 2, 3]), words):
            for choice in event["choices"]:
                before = {"two ": "one ", "three": "two "}.get(choice["text"])
                assert not before or all(seen[number, before].wait(WAIT_S) for number in range(2))
            yield event

    def show(number, text):
        if text != "three":
            seen[number, text].set()

    with serve(lambda body: Reply(events=events(body))) as server:
        result = asyncio.run(policy_of(server, dialect=dialect).stream(replace(HI, n=2), show))
    assert result.error is None
    assert [drawn.text for drawn in result.completions] == ["one two three"] * 2


def test_leaving_ends_the_request():
    left = threading.Event()

    def endless():
        try:
            while not left.wait(0.01):
                yield {"choices": [{"index": 0, "text": "more ", "finish_reason": None}]}
        finally:
            left.set()

    async def main(server):
        shown = asyncio.Event()
        task = asyncio.create_task(policy_of(server).stream(HI, lambda *_: shown.set()))
        await asyncio.wait_for(shown.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await asyncio.to_thread(left.wait, WAIT_S)

    with serve(lambda _: Reply(events=endless())) as server:
        assert asyncio.run(main(server))


# Who can


def test_messages_in_completions_mode_are_refused_before_anything_is_sent():
    with serve(lambda _: Reply()) as server:
        request = SampleRequest(prompt=(Message(role="user", content="Hi"),))
        with pytest.raises(PolicyError, match="mode='chat'"):
            asyncio.run(policy_of(server).stream(request, lambda *_: None))
        assert server.seen == []


def test_the_policy_fits_the_protocol_and_others_do_not():
    assert isinstance(OpenAIPolicy(model="m", base_url="http://none"), StreamsText)
    assert not isinstance(ScriptedPolicy(lambda request, sample: ""), StreamsText)
