"""What of a plain answer is shown while it is written: all that is certain, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import product
from os.path import commonprefix

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import PolicyError
from surefoot.gateway.seat import Seat
from surefoot.gateway.sharing import SharedPolicy
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.protocols import SampleRequest, StreamsText
from surefoot.records import Usage
from surefoot.search.desk import Desk


@dataclass
class Writing:
    """Shows ``text``, which it always writes, in ``parts``."""

    parts: list[str]
    name: str = "writing"
    fault: Exception | None = None
    asked: list[SampleRequest] = field(default_factory=list)

    async def sample(self, requests):
        whole = ScriptedPolicy(lambda request, sample: "".join(self.parts))
        return await whole.sample([SampleRequest(prompt=one.prompt, n=one.n) for one in requests])

    async def stream(self, request, show):
        self.asked.append(request)
        for part in self.parts:
            show(0, part)
        if self.fault:
            raise self.fault
        [result] = await self.sample([request])
        return result


def seat_of(policy, stop):
    desk = Desk(policy=SharedPolicy(policy, overlap=True), overlap=True)
    return Seat(desk, separator="\n", max_tokens=99, stop=stop)


def plainly(text, stops):
    """A text up to the stop text that is the first to end, the longest of these."""
    ends = [(end, -len(mark)) for end in range(len(text) + 1) for mark in stops if text[:end].endswith(mark)]
    end, longest = min(ends, default=(len(text), 0))
    return text[: end + longest]


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.text("ab🙂", max_size=3), max_size=6),
    stops=st.lists(st.text("ab🙂", min_size=1, max_size=3), max_size=3),
)
def test_all_that_is_certain_is_shown_and_nothing_else(parts, stops):
    seat, shown = seat_of(Writing(parts), tuple(stops)), []
    request = SampleRequest(prompt="hi")
    result = asyncio.run(seat.stream(request, lambda number, text: shown.append(text)))
    [whole] = asyncio.run(seat_of(Writing(parts), tuple(stops)).sample([request]))
    assert result == whole
    assert seat.visible(result.completions[0].text) == plainly("".join(parts), stops)
    for count, text in enumerate(shown, 1):
        so_far = "".join(parts[:count])
        may_follow = ("".join(more) for size in range(3) for more in product("ab🙂.", repeat=size))
        assert text == commonprefix([plainly(so_far + more, stops) for more in may_follow])  # noqa: RUF071


def test_the_bound_and_the_stop_texts_are_asked_for():
    policy = Writing(["a b"])
    seat = seat_of(policy, ("x",))
    asyncio.run(seat.stream(SampleRequest(prompt="hi"), lambda *_: None))
    [asked] = policy.asked
    assert (asked.sampling.stop, asked.sampling.max_tokens) == (("x",), 99)
    assert seat.spent == Usage(prompt_tokens=1, completion_tokens=2, calls=1)


# What clients share


def test_a_policy_that_is_asked_in_batches_writes_in_one_piece():
    shared, shown = SharedPolicy(Writing(["a", "b"]), overlap=False), []
    result = asyncio.run(shared.stream(SampleRequest(prompt="hi"), lambda *new: shown.append(new)))
    assert (result.completions[0].text, shown) == ("ab", [])
    assert isinstance(shared, StreamsText)


def test_what_a_streaming_policy_raises_is_a_policys_error():
    shared = SharedPolicy(Writing(["a"], fault=ValueError("odd")), overlap=True)
    with pytest.raises(PolicyError, match="it raised ValueError"):
        asyncio.run(shared.stream(SampleRequest(prompt="hi"), lambda *_: None))


def test_a_policy_that_shows_nothing_is_asked_as_ever():
    seat = seat_of(ScriptedPolicy(lambda request, sample: "a b"), ())
    result = asyncio.run(seat.stream(SampleRequest(prompt="hi"), lambda *_: pytest.fail("shown")))
    assert result.completions[0].text == "a b"
