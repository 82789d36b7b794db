"""What a guard remembers: a log of its decisions for each conversation, and what the messages show of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from threading import Lock, RLock
from typing import Final, Literal, NamedTuple

from surefoot.concurrency import Shares
from surefoot.guard.records import GuardDecision
from surefoot.labelling.verifiers.tool_calls import CallJudge, ToolCallVerifier, call_text
from surefoot.labelling.verifiers.tool_policy import CallResult, call_results
from surefoot.records import Message, ToolCall

MOST_CALLERS: Final = 10_000
"""Callers that are remembered: with keys there are few, without them each address is one."""
MOST_CONVERSATIONS: Final = 10_000
"""Conversations of one caller that are remembered."""
MOST_HIDDEN: Final = 1000
"""Released calls of one conversation that its messages do not show."""
MOST_BYTES: Final = 256 * 2**20
"""Size of all that is remembered."""
CALL_BYTES, _KEY_BYTES = 1000, 200
"""Size of a remembered call without its arguments, and of what stays of it in the end."""
MOST_READ_ON: Final = 64
"""Long conversations whose prefix is kept, so that a check reads only what follows."""
_LONG: Final = 32
"""Messages of a long conversation."""
_REFUSED: Final = "this call was not executed: "
"""Results of refused calls contain this text. Alone it proves nothing, since a tool may write it."""

State = Literal["released", "held", "refused"]


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


class Key(NamedTuple):
    """Digests of a call, without its id and with it."""

    call: bytes
    with_id: bytes

    @classmethod
    def of(cls, call: ToolCall) -> Key:
        text = call_text(call)
        return cls(_digest([text]), _digest([text, call.id]))


def _digest(parts: list[str | None]) -> bytes:
    return hashlib.blake2b(json.dumps(parts).encode(errors="replace"), digest_size=16).digest()


@dataclass(eq=False, kw_only=True)
class LoggedDecision:
    """One decision of a guard."""

    decision: GuardDecision
    caller: str
    calls: tuple[ToolCall, ...]
    turn: int
    readable: bool
    """Whether every call has its canonical form."""
    conversation: ConversationLog | None
    """Where it is logged; ``None`` for a decision that is given once more."""
    request: str | None = None
    """The request that it answers."""
    keys: tuple[Key, ...] = ()
    shown_before: tuple[int, ...] = ()
    """For each call, how many equal ones the messages showed."""
    state: State = "refused"
    reviewed: bool = False
    """Whether a person decided."""
    at: float = 0.0
    """When it got its state, on the monotonic clock."""
    entries: tuple[_Entry, ...] = ()
    refused: Sequence[bytes] = ()
    """The calls that do not count as attempts, by their digests with ids."""

    @property
    def size(self) -> int:
        """Bytes that it takes in the log, about."""
        if self.state == "refused":
            return _KEY_BYTES * len(self.calls)
        return sum(CALL_BYTES + len(call.arguments) for call in self.calls)


@dataclass(eq=False, frozen=True)
class _Entry:
    """A released or held call. The messages show it if they show ``ordinal`` calls that are equal to it."""

    key: bytes
    ordinal: int
    call: ToolCall
    turn: int


class _Prefix:
    """The calls that the beginning of a run shows; a longer run is read on from here."""

    def __init__(self, verifiers: Sequence[ToolCallVerifier], hidden: Iterable[_Entry]) -> None:
        self.messages: tuple[Message, ...] = ()
        self.user: list[str] = []
        self.calls = Counter[bytes]()
        self.skipped = Counter[bytes]()
        """Refused calls, which do not count as attempts."""
        self.hidden = dict.fromkeys(hidden)
        """Calls that were released and are not shown."""
        self.judges = [CallJudge(verifier.rules, verifier.policy) for verifier in verifiers]


class View(NamedTuple):
    """A run as rules see it."""

    user: Sequence[str]
    calls: tuple[Counter[bytes], Counter[bytes]]
    """Attempts that the messages show: up to the last with calls, and there."""
    hidden: int
    """Released calls that they do not show."""
    judges: Sequence[CallJudge]
    """One for each verifier, with all attempts so far."""

    def equal_calls(self, keys: Iterable[Key]) -> tuple[int, ...]:
        """How many calls equal to each the messages show."""
        closed, last = self.calls
        return tuple(closed[key.call] + last[key.call] for key in keys)


class ConversationLog:
    """The log of a guard's decisions about one conversation: one record a decision, with its state.

    A released or held call counts as an attempt for ``remember_s`` seconds, whatever the messages show, and
    as long as they show it. A refused one does not count, unless it was also released.
    """

    def __init__(self, memory: Conversations, caller: str, full: str | None = None) -> None:
        self._memory, self.caller, self.full = memory, caller, full
        self.size = 0
        self.forgotten = False
        self.used = time.monotonic()
        self.last: Future[None] | None = None
        """The check that came last."""
        self._log: OrderedDict[str, LoggedDecision] = OrderedDict()
        """Released and held ones by decision, in the order in which they got their state."""
        self._answers: dict[str, LoggedDecision] = {}
        """The released ones by request."""
        self._refused = Counter[bytes]()
        self._released: set[bytes] = set()
        self._entries: dict[tuple[bytes, int], _Entry] = {}
        self._ordinals: dict[bytes, list[int]] = {}
        self.prefix: _Prefix | None = None
        """What was read of a long run."""
        self._lock = Lock()
        """A person's decision may come while another message is judged, in another thread."""

    def read(self, messages: Sequence[Message], verifiers: Sequence[ToolCallVerifier]) -> View:
        """The run ``messages`` with the attempts that it does not show."""
        messages = tuple(messages)
        with self._lock:
            self._forget()
            prefix = self.prefix
            if prefix is None or messages[: len(prefix.messages)] != prefix.messages:
                prefix = _Prefix(verifiers, self._entries.values())
            end = max(_last_open(messages), len(prefix.messages))
            results = self._attempts(prefix, messages[:end], len(prefix.messages), prefix.skipped)
            for result in results:
                key = Key.of(result.call).call
                prefix.calls[key] += 1
                if (entry := self._entries.get((key, prefix.calls[key]))) is not None:
                    prefix.hidden.pop(entry, None)
            for judge in prefix.judges:
                judge.add(results)
            new = messages[len(prefix.messages) : end]
            prefix.user += [message.content or "" for message in new if message.role == "user"]
            prefix.messages = messages[:end]
            self.prefix = prefix if len(messages) >= _LONG else None
            if self.prefix is not None:
                self._memory.keep_read(self)
            return self._view(prefix, messages)

    def _view(self, prefix: _Prefix, messages: tuple[Message, ...]) -> View:
        """With the last message's calls, whose results may still come, and the hidden ones."""
        last = self._attempts(prefix, messages, len(prefix.messages), prefix.skipped.copy())
        calls = Counter(Key.of(result.call).call for result in last)
        hidden = [
            CallResult(message=-1, number=number, call=entry.call, result=None, turn=entry.turn)
            for number, entry in enumerate(prefix.hidden)
            if prefix.calls[entry.key] + calls[entry.key] < entry.ordinal
        ]
        judges = [judge.fork() for judge in prefix.judges]
        for judge in judges:
            judge.add([*last, *hidden])
        return View(user=prefix.user, calls=(prefix.calls, calls), hidden=len(hidden), judges=judges)

    def _attempts(
        self, prefix: _Prefix, messages: tuple[Message, ...], begin: int, skipped: Counter[bytes]
    ) -> list[CallResult]:
        """The calls of the messages from ``begin`` on, without those that were refused."""
        attempts = []
        for result in call_results(messages, begin, len(prefix.user)):
            if self._refused:
                key, content = Key.of(result.call).with_id, ""
                if result.result is not None:
                    content = result.result.content or ""
                unmatched = self._refused[key] - skipped[key]
                if unmatched > 0 and (result.result is None or _REFUSED in content):
                    skipped[key] += 1
                    continue
            attempts.append(result)
        return attempts

    def answer(self, request: str, keys: Sequence[Key]) -> LoggedDecision | None:
        """The record of an earlier answer to an equal request that released equal calls."""
        with self._lock:
            self._forget()
            record = self._answers.get(request)
        calls = [key.call for key in keys]
        return record if record is not None and [key.call for key in record.keys] == calls else None

    def note(self, record: LoggedDecision, state: State) -> None:
        """Log the state of a decision; this replaces an earlier one."""
        with self._lock:
            self._remove(record)
            record.state, record.at = state, time.monotonic()
            if state == "refused":
                if self.has_room(record.size):  # else its calls count as attempts
                    self._grow(record.size)
                    record.refused = [key.with_id for key in record.keys if key.with_id not in self._released]
                    self._refused.update(record.refused)
                return
            self._grow(record.size)
            self._log[record.decision.id] = record
            record.entries = tuple(
                map(self._entry, record.calls, record.keys, record.shown_before, repeat(record.turn))
            )
            if self.prefix is not None:
                self.prefix.hidden.update(dict.fromkeys(record.entries))
            if state == "released" and record.request is not None and not record.reviewed:
                self._answers[record.request] = record

    def _entry(self, call: ToolCall, key: Key, shown_before: int, turn: int) -> _Entry:
        self._released.add(key.with_id)
        if self._refused.pop(key.with_id, 0) and self.prefix is not None and self.prefix.skipped[key.with_id]:
            self.prefix = None  # it counts now
        ordinals = self._ordinals.setdefault(key.call, [])
        ordinals.append(1 + max(shown_before, ordinals[-1] if ordinals else 0))
        entry = self._entries[key.call, ordinals[-1]] = _Entry(key.call, ordinals[-1], call, turn)
        return entry

    def _forget(self) -> None:
        """Drop the calls that were released too long ago; their keys stay."""
        oldest = time.monotonic() - self._memory.remember_s
        while self._log and (record := next(iter(self._log.values()))).at < oldest:
            self._remove(record)
            self._grow(_KEY_BYTES * len(record.calls))

    def _remove(self, record: LoggedDecision) -> None:
        """Take back what the log has of a decision."""
        self._refused.subtract(key for key in record.refused if self._refused[key])
        record.refused = ()
        if self._log.pop(record.decision.id, None) is None:
            return
        self._grow(-record.size)
        if record.request is not None and self._answers.get(record.request) is record:
            del self._answers[record.request]
        for entry in record.entries:
            del self._entries[entry.key, entry.ordinal]
            self._ordinals[entry.key].remove(entry.ordinal)
            if not self._ordinals[entry.key]:
                del self._ordinals[entry.key]
            if self.prefix is not None:
                self.prefix.hidden.pop(entry, None)

    def has_room(self, size: int) -> bool:
        """Whether so much more may be remembered of its caller."""
        return self._memory.has_room(self.caller, size)

    def _grow(self, amount: int) -> None:
        if not self.forgotten:
            self.size += amount
            self._memory.grow(self.caller, amount)


class Conversations:
    """The conversations of one guard, by caller and key. All that they remember has owners, the callers, who
    share its bounds; whatever was unused for ``remember_s`` seconds makes room."""

    def __init__(self, remember_s: float) -> None:
        self.remember_s = remember_s
        self._by_caller: OrderedDict[str, OrderedDict[str, ConversationLog]] = OrderedDict()
        self._bytes = Shares(MOST_BYTES)
        self._read: OrderedDict[ConversationLog, None] = OrderedDict()
        """Those that are read on, the least recently used first."""
        self._lock = RLock()

    @asynccontextmanager
    async def turn(self, caller: str, key: str) -> AsyncIterator[ConversationLog]:
        """Wait until all checks of the conversation that came before have ended, in any thread or loop."""
        done: Future[None] = Future()
        with self._lock:
            conversation = self._conversation(caller, key)
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

    def _conversation(self, caller: str, key: str) -> ConversationLog:
        of_caller = self._by_caller.get(caller, OrderedDict())
        conversation = of_caller.get(key)
        if conversation is None:
            full = caller not in self._by_caller and len(self._by_caller) >= MOST_CALLERS
            if full and not self._forget_idle(next(iter(self._by_caller)), everything=True):
                return ConversationLog(self, caller, f"there are {MOST_CALLERS} callers")
            if len(of_caller) >= MOST_CONVERSATIONS and not self._forget_idle(caller):
                return ConversationLog(self, caller, f"this client has {MOST_CONVERSATIONS} conversations")
            conversation = self._by_caller.setdefault(caller, of_caller)[key] = ConversationLog(self, caller)
        conversation.used = time.monotonic()
        of_caller.move_to_end(key)
        self._by_caller.move_to_end(caller)
        return conversation

    def _forget_idle(self, caller: str, *, everything: bool = False) -> bool:
        """Forget the conversation of a caller that was used least recently, or all, if none is in use."""
        of_caller = self._by_caller[caller]
        used = next(reversed(of_caller.values()) if everything else iter(of_caller.values())).used
        if time.monotonic() - used <= self.remember_s:
            return False
        for key in list(of_caller) if everything else [next(iter(of_caller))]:
            conversation = of_caller.pop(key)
            conversation.forgotten = True
            self._bytes.add(caller, -conversation.size)
            self._read.pop(conversation, None)
        if not of_caller:
            del self._by_caller[caller]
        return True

    def has_room(self, caller: str, size: int) -> bool:
        """Whether ``size`` more bytes may be remembered of a caller."""
        with self._lock:
            while not self._bytes.has_room(caller, size):
                if caller not in self._by_caller or not self._forget_idle(caller):
                    return False
            return True

    def grow(self, caller: str, size: int) -> None:
        """Add to the bytes of a caller."""
        with self._lock:
            self._bytes.add(caller, size)

    def keep_read(self, conversation: ConversationLog) -> None:
        """Keep the prefix of a conversation; beyond the bound, drop the one used least recently."""
        with self._lock:
            self._read[conversation] = None
            self._read.move_to_end(conversation)
            if len(self._read) > MOST_READ_ON:
                oldest, _ = self._read.popitem(last=False)
                oldest.prefix = None


def _last_open(messages: Sequence[Message]) -> int:
    """Index of the last message with calls, if results may still come; else the number of messages."""
    end = len(messages)
    while end and messages[end - 1].role == "tool":
        end -= 1
    return end - 1 if end and messages[end - 1].tool_calls else len(messages)
