"""Bodies: how deeply they are nested, and text that is none."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress

import pytest
from gateway_server import LineScorer, ask, served
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from surefoot.server.gateway.access import json_shape, parsed_body
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.settings import ServerLimits

MESSAGES = [{"role": "user", "content": "hello"}]
BROKEN = r"Invalid JSON: .*(hex escape|surrogate).* at line 1 column \d+"
KIND = {"content-type": "application/json"}
TEXTS = st.text() | st.text('"\\\\[]{}u/', max_size=8)
VALUES = st.recursive(
    st.none() | TEXTS | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


class Body(BaseModel):
    """Any object."""

    model_config = ConfigDict(extra="allow")


def depth_of(value):
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@pytest.mark.slow
@given(VALUES, st.booleans())
def test_depth_is_that_of_the_parsed_value(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert json_shape(body, stop=10**6)[0] == depth_of(value)
    assert json_shape(body, stop=1)[0] == min(depth_of(value), 2)


def parts_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(parts_of, value)) if isinstance(value, list) else 0


@given(VALUES)
def test_parts_are_counted_as_the_parser_makes_them(value):
    assert json_shape(json.dumps(value).encode(), stop=10)[1] == parts_of(value)


def scanned(body):
    """Depth as a scanner counts it, byte by byte."""
    depth = deepest = 0
    inside = escaped = False
    for byte in body:
        if inside:
            inside = escaped or byte != ord('"')
            escaped = not escaped and byte == ord("\\")
            continue
        inside = byte == ord('"')
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


@pytest.mark.slow
@given(VALUES, st.integers(min_value=0), st.text('"\\\\[]{}:,1', max_size=12))
def test_what_a_parser_reads_before_it_gives_up_is_counted(value, place, noise):
    good = json.dumps(value)
    at = place % (len(good) + 1)
    body = good[:at] + noise + good[at:]
    try:
        json.loads(body)
        read = len(body)
    except json.JSONDecodeError as error:
        read = error.pos
    assert json_shape(body.encode(), stop=10**6)[0] >= scanned(body[:read].encode())


def test_depth_takes_time_in_proportion_to_the_body():
    hard = [
        b"[" * 2_000_000,
        b'"' + b"\\" * 2_000_000 + b'"',
        b'["",' + b'"",' * 660_000 + b'""]',
        b"[],[" * 500_000,
    ]
    began = time.process_time()
    for body in hard:
        with suppress(ApiError):
            parsed_body(body, KIND, Body, ServerLimits())
    assert time.process_time() - began < 1


HALVES = st.lists(
    st.sampled_from([r"\ud83d", r"\uDE00", r"\\", r"\u00e9", r"\n", r"\"", "ud83d", "é", "/"]),
    max_size=8,
)


@given(HALVES)
def test_half_a_surrogate_is_refused_wherever_a_parser_finds_one(pieces):
    text = f'{{"a": "{"".join(pieces)}"}}'
    value = json.loads(text)
    if any(0xD800 <= ord(sign) < 0xE000 for sign in value["a"]):
        with pytest.raises(ApiError, match=BROKEN):
            parsed_body(text.encode(), KIND, Body, ServerLimits())
    else:
        assert parsed_body(text.encode(), KIND, Body, ServerLimits()).a == value["a"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_other_encodings_are_refused(encoding):
    with pytest.raises(ApiError, match="Invalid JSON"):
        parsed_body('{"a": "é"}'.encode(encoding), KIND, Body, ServerLimits())


def test_half_a_surrogate_is_the_clients_error():
    half = "half \ud83d"
    plain = {"model": "scripted", "messages": MESSAGES}
    tool = {"type": "function", "function": {"name": "f", "description": half}}
    bodies = {
        "messages.0.content": (
            "chat/completions",
            {**plain, "messages": [{"role": "user", "content": half}]},
        ),
        "tools.0.function.description": ("chat/completions", {**plain, "tools": [tool]}),
        "tools.0.bad?": ("chat/completions", {**plain, "tools": [{"bad\ude00": 1}]}),
        "items.0.steps.1": ("score", {"items": [{"problem": "p", "steps": ["a", half]}]}),
        "items.0.problem": ("score", {"items": [{"problem": half, "steps": ["a"]}]}),
    }
    with served(scorer=LineScorer()) as found:
        for field, (path, body) in bodies.items():
            status, answer = ask(f"{found.url}/{path}", json.dumps(body))
            assert status == 400, field
            assert re.search(
                r"Invalid JSON: .*(hex escape|surrogate).* at line 1 column \d+", answer["error"]["message"]
            )
        raw = json.dumps(plain).encode().replace(b"hello", b"\xed\xa0\xbd")  # half of one, without an escape
        assert ask(f"{found.url}/chat/completions", raw)[0] == 400
        whole = {**plain, "messages": [{"role": "user", "content": r"\ud83d \U0001f600"}]}
        assert ask(f"{found.url}/chat/completions", json.dumps(whole))[0] == 200
