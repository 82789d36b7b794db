"""What goes to a scoring server and what comes back.

A wire turns items into JSON bodies and a body's answer into one list of scores an item; it does no network.
There is one for vLLM (``surefoot.models.vllm_wire``) and one for this package's gateway
(``surefoot.models.gateway_wire``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from surefoot.models.encoding import EncodedTrace
from surefoot.protocols import ProblemTrace

T = TypeVar("T", bound=BaseModel)

Scores = tuple[float | None, ...]


class WireError(Exception):
    """An answer that is not of the documented shape; the message names what came."""


class Encoder(Protocol):
    """Token ids and read-out positions; every :class:`surefoot.models.step_model.StepModel` is one."""

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]: ...


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request: its JSON body, and how many scores each of its items has."""

    body: dict[str, Any]
    encoded: tuple[EncodedTrace, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Scores of a call's items, each in [0, 1] or ``None`` for a step that was cut off."""

    scores: list[Scores]
    reasons: list[str | None]
    """Why some scores of an item are ``None``."""
    tokens: list[int]
    """Tokens the server read for each item."""


class Wire(Protocol):
    """One server interface. ``path`` is relative to the server's base URL, without ``/v1``."""

    @property
    def path(self) -> str: ...

    def call(self, items: Sequence[ProblemTrace]) -> Call:
        """Raises ``ScoreError`` for a trace without steps."""

    def read(self, call: Call, answer: str) -> Reply:
        """Raises :class:`WireError`."""


class AnswerPart(BaseModel):
    """Part of an answer; fields that are not read are left alone."""

    model_config = ConfigDict(frozen=True)


def parse_answer(model: type[T], answer: str) -> T:
    """An answer's text as ``model``. Raises :class:`WireError` naming the field."""
    try:
        return model.model_validate(json.loads(answer))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise WireError(f"{where}: {first['msg']}; the answer begins {answer[:200]!r}") from error
    except ValueError as error:
        raise WireError(f"no JSON: the answer begins {answer[:200]!r}") from error


def checked_score(score: float | None) -> float | None:
    """``score`` without rounding beyond [0, 1]. Raises :class:`WireError` if it lies further outside."""
    if score is not None and not -1e-6 <= score <= 1 + 1e-6:  # False for NaN
        raise WireError(
            f"a score is {score}, outside [0, 1]: raw logits? the server must apply its activation"
        )
    return None if score is None else min(1.0, max(0.0, score))
