"""What the gateway records of each request, and the protocols of the stores that it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, get_args

from pydantic import BaseModel, ConfigDict, Field

from surefoot.guard import GuardDecision, Review
from surefoot.protocols import Completion, SampleResult
from surefoot.records import Message, Problem, Record, StepScores, Tool, Trace, Usage

Decision = Literal["accept", "reject", "unscored"]
"""unscored: no step is known to be bad, but some have no score."""


class SessionTurn(BaseModel):
    """Where a request stands in a session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str = Field(min_length=1, max_length=200)
    """The name that the client gave it. Another key's session of the same name is another session."""
    turn: int = Field(ge=0)
    """Answers before this one in the conversation."""
    messages: tuple[Message, ...]
    """The conversation before the answer."""
    tools: tuple[Tool, ...] = ()


class DrawnTokens(BaseModel):
    """A message's tokens, as the policy's server says that it drew them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_ids: tuple[int, ...] = ()
    """The prompt as it was read; empty where the server does not say."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """log π of each of ``ids``, in nats and before the temperature; empty where the server does not say."""

    @classmethod
    def of(cls, completion: Completion, result: SampleResult) -> DrawnTokens | None:
        """Those of one of a result's completions; ``None`` if nothing is known."""
        # JSON has no infinity
        logprobs = completion.logprobs if all(map(math.isfinite, completion.logprobs)) else ()
        if not (completion.token_ids or logprobs):
            return None
        return cls(prompt_ids=result.prompt_token_ids, ids=completion.token_ids, logprobs=logprobs)


class GatewayCandidate(BaseModel):
    """One solution that the strategy considered, or that the client sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace: Trace
    chosen: bool
    """Whether it became an answer."""
    choice: int | None = Field(default=0, ge=0)
    """The answer that it was considered for, counted from 0; ``None`` = the client sent it."""
    weight: int = Field(default=1, ge=1)
    """How often it was drawn."""
    score: float | None = None
    """What the strategy ranked it by; ``None`` = not scored."""
    scores: StepScores | None = None
    reason: str | None = None
    """Why it was rejected, cut or withheld, e.g. ``step 3 below 0.5``."""
    tokens: DrawnTokens | None = None
    """Of a message that was drawn whole in a session; ``None`` for one that was put together of steps, or cut
    at a stop text."""


class GatewayRecord(Record):
    """One request to the gateway, answered or failed."""

    request_id: str = Field(min_length=1, max_length=200)
    """Unique; that of the answer. A second write with the same id changes nothing."""
    created: datetime
    endpoint: str
    """``/v1/chat/completions`` …"""
    model: str
    """The model that the client named."""
    strategy: str
    """``best-of-16``, ``beam-4x4`` …; the empty text where none applies."""
    policy: str | None = None
    """Who wrote the candidates."""
    scorer: str | None = None
    """Who scored them; ``None`` = nobody."""
    status: int
    """HTTP status that was answered; 499 = the client disconnected."""
    error: str | None = None
    latency_ms: float = Field(ge=0)
    usage: Usage = Usage()
    key_id: int | None = None
    project_id: int | None = None
    """That of the key."""
    problem: Problem | None = None
    """The prompt as a problem."""
    candidates: tuple[GatewayCandidate, ...] = ()
    trees: dict[int, Any] = Field(default_factory=dict)
    """All steps that a search drew, by the answer it was for, where some were dropped: the JSON of
    ``surefoot.search.saved_tree.SavedTree``."""
    session: SessionTurn | None = None
    """Where the request stands in a conversation that the client named."""
    decision: Decision | None = None
    """The verdict on a solution that the client sent."""
    guard: dict[int, tuple[GuardDecision, ...]] = Field(default_factory=dict)
    """What the guard decided about messages with tool calls, in the order in which they were drawn, by the
    answer they were for."""
    request: dict[str, Any] = Field(default_factory=dict)
    """The parameters of the request (n, temperature, seed …), without the messages."""
    tally: dict[str, float] = Field(default_factory=dict)
    """What the request adds to the counters of its hour."""


class HeldCall(BaseModel):
    """A message whose calls wait for a person, or waited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: str
    """The request that it was drawn for."""
    choice: int = Field(default=0, ge=0)
    created: datetime
    key_id: int | None = None
    """Who asked."""
    run: tuple[Message, ...]
    """What came before."""
    reply: Message
    """The message with the calls."""
    decision: GuardDecision
    """What the guard found."""
    review: Review | None = None
    """What the person decided; ``None`` = nothing yet."""


class HoldStore(Protocol):
    """Where held calls wait. ``Database.held_calls`` is one. All methods block and raise ``StoreError``."""

    def hold(self, held: HeldCall, *, most: int) -> int | None:
        """Keep a call and give its number; ``None`` where ``most`` wait already."""
        ...

    def reviews(self, numbers: Sequence[int]) -> dict[int, Review]:
        """The decisions about these calls, as far as there are any."""
        ...

    def held(self, number: int, *, key_id: int | None) -> HeldCall:
        """A call of that key (``None``: of nobody's). Raises ``NotFoundError``."""
        ...


class RecordStore(Protocol):
    """Where the gateway writes. ``Database.gateway`` is one; a list in a test is another."""

    def write_all(self, records: Sequence[GatewayRecord]) -> None:
        """Store all ``records`` or none. They are on disk when this returns. Blocks; call it in a thread."""
        ...

    def ping(self) -> None:
        """Return if records can be written now. Raises ``UnavailableError``; blocks."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScoredRequest:
    """Step scores of a request's answers, concatenated."""

    created: datetime
    request_id: str
    scores: tuple[float | None, ...]


class ScoreHistory(Protocol):
    """Scores of earlier answers, from which a monitor resumes. ``Database.gateway`` is one."""

    def scores(
        self,
        *,
        policy: str,
        scorer: str,
        since: datetime | None = None,
        latest: bool = False,
        limit: int = 2000,
    ) -> Sequence[ScoredRequest]:
        """Those of the first ``limit`` requests from ``since`` on, or of the ``latest``, oldest first."""
        ...


KeyScope = Literal["chat", "score", "pages", "admin"]
"""chat: generate; score: score and verify solutions; pages: read and label on the pages, and read metrics;
admin: what administrators of a project or of the server do on the pages, such as imports, members and
accounts."""

SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)

ROLE_SCOPES: Final[Mapping[str, frozenset[KeyScope]]] = MappingProxyType(
    {
        "client": frozenset(["chat", "score"]),
        "viewer": frozenset(["pages"]),
        "annotator": frozenset(["pages"]),
        "admin": frozenset(SCOPES),
    }
)
"""Scopes that keys of a role may have; they have all of them by default."""


class AuthorizedKey(Protocol):
    """An API key as the gateway sees it. ``surefoot.server.store.ApiKey`` is one."""

    @property
    def id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def project_id(self) -> int | None: ...

    @property
    def rate_limit(self) -> int | None: ...

    @property
    def scopes(self) -> tuple[KeyScope, ...] | None: ...


class KeyStore(Protocol):
    """Where keys are looked up. ``Database.keys`` is one. All methods block and raise ``StoreError``."""

    def authenticate(self, key: str) -> AuthorizedKey | None:
        """The key that this secret belongs to; ``None`` if it is unknown or revoked.

        Raises ``ExpiredKeyError``.
        """
        ...

    def note_use(self, key: Any) -> None:
        """Record that ``key``, as ``authenticate`` returned it, was used now."""
        ...
