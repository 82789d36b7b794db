"""What a guard remembers of conversations: their order, and calls that their messages do not show yet."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from surefoot.labelling.verifiers.tool_calls import call_text
from surefoot.labelling.verifiers.tool_policy import CallResult, call_results
from surefoot.records import Message, ToolCall

_CALLERS: Final = 10_000
"""Callers that are remembered: with keys there are few, without them each address is one."""
_CONVERSATIONS: Final = 10_000
"""Conversations of one caller that are remembered; the one that was used least recently goes first."""
MAX_REMEMBERED: Final = 1000
"""Calls of one conversation that are remembered."""
_REFUSED: Final = "this call was not executed: "
"""Results of refused calls contain this text. Alone it proves nothing, since a tool may write it."""


def conversation_key(messages: Sequence[Message], name: str | None = None) -> str:
    """The key of a conversation: its name if it has one, else its messages up to the user's first or the
    model's first.

    So two conversations of one caller that begin with the same messages are one, unless they have names:
    their released calls count together until the guard forgets them.
    """
    digest = hashlib.sha256(b"name" if name is not None else b"messages")
    for message in messages if name is None else ():
        if message.role in ("assistant", "tool"):
            break
        digest.update(message.model_dump_json().encode())
        if message.role == "user":
            break
    digest.update((name or "").encode(errors="replace"))
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Released:
    """A call that may have been executed."""

    decision: str
    at: float
    hash: str
    turn: int
    call: ToolCall


@dataclass
class CallMemory:
    """The calls that a guard decided about."""

    released: list[Released] = field(default_factory=list)
    """Also calls that wait for a person."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Hashes of calls that were not released, by decision."""
    last: Future[None] | None = None
    """The check that came last."""
    lock: Lock = field(default_factory=Lock)
    """A person's decision may come while another message is judged, in another thread."""

    def results(self, messages: Sequence[Message], forget_s: float) -> list[CallResult]:
        """The attempts so far: calls of the messages, and calls released in the last ``forget_s`` seconds
        that the messages do not show. Calls that the guard refused do not count."""
        begin = time.monotonic() - forget_s
        with self.lock:
            self.released = [released for released in self.released if released.at >= begin]
            pending = tuple(self.released)
            refused = Counter(call for calls in self.refused.values() for call in calls)
        visible = Counter[str]()
        attempts = []
        for result in call_results(messages):
            with_id, content = _hash(result.call, result.call.id), ""
            if result.result is not None:
                content = result.result.content or ""
            if refused[with_id] and (result.result is None or _REFUSED in content):
                refused[with_id] -= 1
                continue
            visible[_hash(result.call)] += 1
            attempts.append(result)
        for number, released in enumerate(pending):
            if visible[released.hash]:
                visible[released.hash] -= 1
            else:
                attempts.append(
                    CallResult(message=-1, number=number, call=released.call, result=None, turn=released.turn)
                )
        return attempts

    def note(self, decision: str, calls: Sequence[ToolCall], turn: int, *, released: bool) -> None:
        """Record what became of a decision's calls; this replaces an earlier record. Refused calls beyond a
        bound count as attempts."""
        now = time.monotonic()
        with self.lock:
            self.released = [previous for previous in self.released if previous.decision != decision]
            self.refused.pop(decision, None)
            if released:
                self.released += [
                    Released(decision=decision, at=now, hash=_hash(call), turn=turn, call=call)
                    for call in calls
                ]
            elif sum(map(len, self.refused.values())) + len(calls) <= MAX_REMEMBERED:
                self.refused[decision] = [_hash(call, call.id) for call in calls]


def _hash(call: ToolCall, call_id: str | None = "") -> str:
    text = json.dumps([call_text(call), call_id])
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()


class Conversations:
    """The conversations of one guard, by caller and key."""

    def __init__(self) -> None:
        self._by_caller: OrderedDict[str, OrderedDict[str, CallMemory]] = OrderedDict()
        self._lock = Lock()

    @asynccontextmanager
    async def turn(self, caller: str, key: str) -> AsyncIterator[CallMemory]:
        """Wait until all checks of the conversation that came before have ended, in any thread or loop."""
        done: Future[None] = Future()
        with self._lock:
            of_caller = self._by_caller.setdefault(caller, OrderedDict())
            conversation = of_caller.setdefault(key, CallMemory())
            of_caller.move_to_end(key)
            self._by_caller.move_to_end(caller)
            if len(self._by_caller) > _CALLERS:
                self._by_caller.popitem(last=False)
            while len(of_caller) > _CONVERSATIONS:
                of_caller.popitem(last=False)
            previous, conversation.last = conversation.last, done
        if previous is not None:
            try:
                await asyncio.shield(asyncio.wrap_future(previous))
            except BaseException:  # cancelled: the next one still waits for the one before
                previous.add_done_callback(lambda _: done.set_result(None))
                raise
        try:
            yield conversation
        finally:
            done.set_result(None)
