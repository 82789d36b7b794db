"""What clients are told of a failure: its kind. What the server behind the gateway said is not for them."""

from __future__ import annotations

import re

TOLD_CHARACTERS = 500
"""How much of a message goes to a client."""

_SERVER = re.compile(r"(?<!\w)server: ")
_STATUS = re.compile(r"(?:status|Error code:) (\d{3})(?!\d)")
_ABOUT_THE_REQUEST = ("400", "413", "422")
"""Statuses whose message speaks of what the client sent."""

_KINDS = re.compile(
    r"connection failed|Connection error|no answer in time|Request timed out|request failed"
    r"|the stream broke off|malformed answer"
)
_OWN_WORDS = re.compile(
    r"not sent: |the answer has no |the stream ended |no token_ids came |choice \d+ came, "
    r"|\d+ choices came, |\d+ of \d+ choices are missing|malformed answer: choice \d+ has no text"
)
"""Beginnings of messages of this package, in which nothing is quoted from a server."""

_MISSING = re.compile(r" \(\d+ of \d+ samples are missing\)\Z")


def told_of_policy(error: str) -> str:
    """A ``SampleResult.error`` without what a server said, unless it says it about the request."""
    if error.startswith("policy: "):
        return error[:TOLD_CHARACTERS]
    found = _SERVER.match(error)
    return found[0] + _kind(error[found.end() :]) if found else "the server's log has the reason"


def told_of_scorer(reason: str) -> str:
    """A ``StepScores.unscored_reason``, likewise. There, a server's words may be anywhere, and several's."""
    own, *said = _SERVER.split(reason)
    return (own + "; ".join(f"server: {_kind(one)}" for one in said))[:TOLD_CHARACTERS]


def _kind(said: str) -> str:
    """What may be told of a message that came after ``server: ``."""
    missing = _MISSING.search(said)
    end = missing[0] if missing else ""
    status = _STATUS.match(said)
    if _OWN_WORDS.match(said) or (status and status[1] in _ABOUT_THE_REQUEST):
        return said.removesuffix(end)[:TOLD_CHARACTERS] + end
    if status:
        return f"status {status[1]}{end}"
    kind = _KINDS.match(said)
    return f"{kind[0] if kind else 'it failed'}{end}"
