"""All bounds of a server: whose each is, which share an owner has, and what happens beyond it.

A client is a key, or an address without one. ``equal part``: all that is free, and an equal part once it is
full (:class:`surefoot.concurrency.Shares`); ``turns``: fair turns (:class:`surefoot.concurrency.FairQueue`).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel

from surefoot.answers import checker
from surefoot.guard import conversations, guard
from surefoot.policies import http_client, openai, openai_responses
from surefoot.server.gateway import access, gateway, request_log, upstream
from surefoot.server.gateway.settings import ServerLimits, ToolGuard

_ROWS = """
limits.connections | open connections | address | by the proxy (limit_conn) | 503
limits.running | requests that are worked on | client | turns | they wait
limits.waiting | requests that wait | client | equal part | 429
limits.running_per_key | requests of a key that run or wait | key | its own | 429
limits.rate_per_minute | requests of a key in a minute | key | its own | 429
limits.timeout_s | seconds of a request | request | its own | 504
limits.grace_s | seconds of a request when the server stops | request | its own | 503
limits.keep_alive_s | silent seconds of a stream | request | its own | a comment is sent
limits.max_body_bytes | bytes of a body | request | its own | 413
limits.max_json_depth | nesting of a body | request | its own | 400
limits.max_json_parts | objects and lists of a body | request | its own | 400
limits.max_tokens | new tokens of a solution | request | its own | 400
limits.default_tokens | new tokens, if none are named | request | its own | the solution ends
limits.max_n | choices | request | its own | 400
limits.max_candidates | sampled solutions | request | its own | 400
limits.max_items | solutions to score | request | its own | 400
access.MOST_BUCKETS | owners whose rate is known | key or address | one each | the idlest starts over
access.READERS: _readers | threads that look up keys | server | known keys need none | they wait up to 10 s
access.WRITERS: _writer | threads that note uses of keys | key | one note a minute | it is noted later
upstream.SAMPLING_TURNS: _sampling | requests at the policy | client | turns | they wait
openai.CONCURRENCY: window | calls at the policy's server | client | turns | they wait
openai_responses.TOKEN_CHARACTERS | characters of an answer, a token | request | its own | 502
openai_responses.TOKEN_EVENTS | events of a stream, a token | request | its own | 502
http_client.MAX_RESPONSE_BYTES | bytes of an answer | request | its own, by its tokens | 502
upstream.SCORING_TURNS: _scoring, _threads | chunks at the reward model | client | turns | they wait
gateway.TEXT_TURNS: _texts, _threads | work on texts | client | turns, half for small texts | they wait
checker.MOST_THREADS: _turns, _threads | comparisons | client | turns, half for quick ones | they wait
request_log.WRITERS: _thread | threads that write the record | server | all that wait at once | they wait
request_log.MOST_NOTED: _noted | waiting records of failures | key | equal part | dropped and counted
gateway.GUARD_TURNS: _turns | checks of calls | client | turns, half for quick ones | they wait
guard.WORKERS: _threads | threads of the guard | client | by the checks' turns | they wait
guard.most_held | held calls that wait for people | key | equal part | rejected
guard.hold_s | seconds that a request waits for a person | request | its own | answered without the call
guard.max_calls | calls of a message | request | its own | rejected
guard.max_argument_bytes | bytes of the arguments of a message | request | its own | rejected
guard.resamples | draws after the first | request | its own | after_resamples
guard.rejections | rejections that the model sees | request | its own | withheld
guard.timeout_s | seconds of a stage | request | its own | rejected, or as fail says
guard.remember_s | seconds that an unseen released call counts | conversation | its own | forgotten
guard.MOST_UNUSED | decisions that are not used yet | client | whoever has most loses one | void
conversations.MOST_CALLERS | clients that are remembered | server | one each | an idle one goes, else rejected
conversations.MOST_CONVERSATIONS | of a client | client | its own | an idle one goes, else rejected
conversations.MOST_HIDDEN | released calls that are not shown | conversation | its own | rejected
conversations.MOST_BYTES: _bytes | bytes of calls | client | equal part | idle ones go, else rejected
conversations.MOST_READ_ON | long conversations that are read on | server | the latest | reread
"""
_MODULES: tuple[ModuleType, ...] = (
    *(
        access,
        checker,
        conversations,
        gateway,
        guard,
        http_client,
        openai,
        openai_responses,
        request_log,
        upstream,
    ),
)
_SETTINGS: dict[str, type[BaseModel]] = {"limits": ServerLimits, "guard": ToolGuard}


class Bound(NamedTuple):
    """A bound that a client or user can reach: requests beyond it wait or are refused."""

    name: str
    """A setting, or a constant with its module."""
    attributes: tuple[str, ...]
    """Attributes of the module that it bounds."""
    value: Any
    """By default; ``None`` = no bound."""
    bounds: str
    owner: str
    share: str
    beyond: str


def _bound(row: str) -> Bound:
    target, *texts = row.split(" | ")
    name, _, attributes = target.partition(": ")
    group, field = name.split(".")
    setting = _SETTINGS[group].model_fields.get(field) if group in _SETTINGS else None
    if setting is not None:
        value = setting.default
        name = f"server.{name}" if group == "limits" else f"gateway.{name}"
    else:
        [module] = [module for module in _MODULES if module.__name__.endswith(f".{group}")]
        value = getattr(module, field)
    return Bound(name, tuple(filter(None, attributes.split(", "))), value, *texts)


BOUNDS: tuple[Bound, ...] = tuple(map(_bound, _ROWS.strip().splitlines()))
"""Caches are left out: evicted entries are computed again."""


def bounds_table() -> str:
    """The table in Markdown, as the documentation has it."""
    rows = [("name", "bounds", "default", "owner", "share", "beyond it"), ("---",) * 6]
    for row in BOUNDS:
        value = "none" if row.value is None else f"{row.value:,}".removesuffix(".0")
        rows.append((f"`{row.name}`", row.bounds, value, row.owner, row.share, row.beyond))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
