"""One error class per boundary. Each message names the field and the fix."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches


class SurefootError(Exception):
    """Base of every error the package raises on purpose."""


class RecordError(SurefootError):
    """Bytes from outside do not form a valid record (bad JSON, wrong field, broken span)."""


class AnswerError(SurefootError):
    """An answer could not be extracted or compared within its limits."""


class SegmentError(SurefootError):
    """A text could not be cut into steps, or spans do not fit the text or its tokens."""


class PolicyError(SurefootError):
    """A policy could not be loaded or did not answer."""


class LabelError(SurefootError):
    """Labels are missing, contradictory or of the wrong kind."""


class CheckpointError(SurefootError):
    """A checkpoint directory is incomplete or belongs to another family."""


class ScoreError(SurefootError):
    """A trace could not be scored, or scores could not be reduced to one number."""


class SchemaError(SurefootError):
    """The JSON schema of a tool's parameters cannot be used; the message says why."""


class GuardError(SurefootError):
    """A guard's settings are contradictory, or the server behind it did not answer."""


class TrainingError(SurefootError):
    """Training data or numbers are unusable (nothing labelled, loss not finite)."""


class DeviceError(SurefootError):
    """The device for a model is not available."""


class SandboxError(SurefootError):
    """Programs cannot be isolated here, or a sandbox did not answer; the message says what to install."""


class MissingExtraError(SurefootError):
    """An optional package is not installed; the message has the command that installs it."""


class RunError(SurefootError):
    """A command cannot run here, or its run directory belongs to a different run."""


class IncompleteError(SurefootError):
    """The work ended and its results are saved, but some of it failed or is not done."""


class StoreError(SurefootError):
    """The database cannot be opened, or refuses a request."""


class NotFoundError(StoreError):
    """The object does not exist, or not in this project."""


class ConflictError(StoreError):
    """Another request was first: a version, a name, a lease, or an idempotency key with another body."""


class ForbiddenError(StoreError):
    """The user is not a member of the project, or does not have the item."""


class ExpiredKeyError(ForbiddenError):
    """The API key has expired."""


class UnavailableError(StoreError):
    """The database failed or did not respond; the request itself is valid."""


def unknown(what: str, name: str, choices: Collection[str]) -> str:
    """The sentence about a name that is not one of ``choices``."""
    similar = get_close_matches(name, choices, 1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"choose from {', '.join(choices)}"
    return f"unknown {what} {name!r}; {hint}"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its words: "1 step", "2,000 steps", or with a verb, "1 trace is", "2 traces are"."""
    if number != 1:
        one = many or re.sub(r"(?<=[^aeiou])y$", "ie", re.sub("(x|ss|ch)$", r"\1e", one)) + "s"
    return f"{number:,} {one}"
