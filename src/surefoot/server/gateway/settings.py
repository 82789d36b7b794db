"""Settings of the server: where it listens, the limits of requests, how the gateway writes and scores, and
how the pages are served. Quick to import, as the command line reads them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from surefoot.answers import AnswerStyle
from surefoot.guard.records import GuardSettings
from surefoot.scores import TraceRule
from surefoot.server.records import FlagName

Candidates = Literal["all", "chosen", "none"]
"""Which candidates an answer shows in addition to its text."""


class Settings(BaseModel):
    """Base of the settings classes: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerLimits(Settings):
    """Limits of one request, and of all requests together."""

    max_body_bytes: int = Field(default=2_000_000, ge=1, description="Largest body, in bytes.")
    max_json_depth: int = Field(default=32, ge=1, le=200, description="Deepest nesting of a body's JSON.")
    max_json_parts: int = Field(
        default=30_000, ge=1, description="Objects and lists in a body's JSON; each costs some microseconds."
    )
    max_tokens: int = Field(default=8192, ge=1, description="Longest solution that a client may request.")
    default_tokens: int = Field(
        default=2048, ge=1, description="Longest solution for a client that does not say."
    )
    max_n: int = Field(default=16, ge=1, description="Choices per request.")
    max_candidates: int = Field(
        default=128,
        ge=1,
        description="Solutions, or next steps per round, that one request draws, over all choices; repeated "
        "rounds count.",
    )
    max_items: int = Field(default=256, ge=1, description="Solutions per scoring request.")
    running: int = Field(default=256, ge=1, description="Requests worked on at the same time.")
    waiting: int = Field(
        default=256, ge=0, description="Requests that may wait for a slot; the next is answered 429."
    )
    timeout_s: float = Field(
        default=300.0, gt=0, description="Seconds from a request's arrival to its answer."
    )
    grace_s: float = Field(
        default=30.0, ge=0, description="Seconds that running requests have when the server stops."
    )
    rate_per_minute: float | None = Field(
        default=None,
        gt=0,
        description="Requests per minute for keys without their own rate; none = no limit.",
    )
    connections: int = Field(
        default=2000,
        ge=1,
        description="Connections at the same time; the next is answered 503.",
    )
    keep_alive_s: float = Field(
        default=15.0, gt=0, description="Seconds of silence in a stream after which a comment is sent."
    )


def _checked_network(network: str) -> str:
    try:
        ipaddress.ip_network(network)
    except ValueError as error:
        raise ValueError(f"{network!r} is not an address or network such as 10.0.0.0/8") from error
    return network


Network = Annotated[str, AfterValidator(_checked_network)]
"""An IP address, or a network such as ``10.0.0.0/8``."""


class ServerSettings(Settings):
    """Where a server listens, and who may use it."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 = any free one.")
    require_key: bool = Field(
        default=False,
        description="Require an API key on loopback too; beyond loopback one is always required.",
    )
    open_health: bool = Field(
        default=False, description="Answer /health and /ready without a key, for probes that have none."
    )
    limits: ServerLimits = ServerLimits()

    @property
    def needs_key(self) -> bool:
        """Whether nothing is answered without a key."""
        return self.require_key or not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``. A name other than ``localhost`` counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class ToolGuard(GuardSettings):
    """Whether and how tool calls are checked before clients get them."""

    enabled: bool = Field(default=False, description="Check tool calls before they are released.")
    hold_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds for which a request waits for a person's decision on a held call; then it is "
        "answered without the call, and the client may ask for the decision later.",
    )
    most_held: int = Field(
        default=100, ge=1, description="Calls that may wait for people at once; more are rejected."
    )


class FlagSettings(Settings):
    """Warnings to raise on answers, and their effects."""

    enabled: tuple[FlagName, ...] = Field(default=get_args(FlagName), description="Flags that are raised.")
    withhold: tuple[FlagName, ...] = Field(
        default=(),
        description="Flags that keep an answer back, also if they cannot be checked. first-bad-step needs a "
        "reward model, and strategies whose steps it scores.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unseen := set(self.withhold) - set(self.enabled):
            raise ValueError(
                f"'withhold' has {', '.join(sorted(unseen))}, which 'enabled' lacks; add it there"
            )
        return self


class GatewaySettings(Settings):
    """How a :class:`surefoot.server.Gateway` answers, unless a request says otherwise."""

    strategy: str = Field(
        default="plain",
        description="Strategy of the model name `surefoot`: plain, a search such as beam:width=4,expand=4, "
        "or a name of `strategies`.",
    )
    strategies: Mapping[str, str] = Field(
        default={
            "best-of-16": "best-of-n:n=16",
            "majority-16": "majority:n=16",
            "beam-4x4": "beam:width=4,expand=4",
            "accept-reject": "resample:rule=first,threshold=0.5",
        },
        description="Short names of strategies, which /v1/models lists; requests may name other searches.",
    )
    candidates: Candidates = Field(
        default="all", description="Solutions that answers show with the text, unless a request says."
    )
    ignore_tools: bool = Field(
        default=False,
        description="Ignore tools that policy or strategy do not support, instead of refusing them.",
    )
    refusal_as_text: bool = Field(
        default=False,
        description="Give the reason for withholding an answer as its text; some clients show no refusal.",
    )
    record_logprobs: bool = Field(
        default=False,
        description="Ask the policy for log-probabilities of its tokens, in sessions, and record them.",
    )
    chat: bool = Field(
        default=False,
        description="Pass messages on as they are, through the policy's chat template.",
    )
    template: str = Field(default="{problem}\n", description="Prompt around a question.")
    temperature: float = Field(default=0.8, ge=0, le=2, description="For requests that name none.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="For requests that name none.")
    separator: str | None = Field(
        default=None,
        min_length=1,
        max_length=20,
        description="Text that ends a step. If not given, what stands between steps in the training data of "
        "the reward model, else a line break.",
    )
    step_tokens: int = Field(default=256, ge=1, description="Longest step; it is cut there.")
    max_steps: int = Field(
        default=40, ge=1, description="Steps after which the rest is written in one piece."
    )
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="A step below this is bad, for /v1/score and flags."
    )
    abstain_below: float | None = Field(
        default=None, ge=0, le=1, description="Withhold answers whose aggregated score is below this."
    )
    aggregation: TraceRule | None = Field(
        default=None,
        description="Step scores to one number; default: as the reward model's checkpoint says, verdicts for "
        "a verifier, else min.",
    )
    reasoning_opened: bool = Field(
        default=False,
        description="The policy's template opens `<think>`, as DeepSeek-R1's does, so that its texts begin "
        "within the reasoning; needed for streams only.",
    )
    extract: tuple[AnswerStyle, ...] = Field(
        default=("boxed", "hash", "phrase", "last_number"), description="Where to look for final answers."
    )
    guard: ToolGuard = ToolGuard()
    flags: FlagSettings = FlagSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "{problem}" not in self.template:
            raise ValueError("'template' must contain '{problem}'")
        return self


class MonitorSettings(Settings):
    """Reference and alarm of a :class:`surefoot.server.ChangeChart`."""

    since: AwareDatetime | None = Field(
        default=None,
        description="When the reference begins, if the log holds earlier answers; default: with the first.",
    )
    reference: int = Field(default=1000, ge=40, description="Requests of the reference: the first ones.")
    run_length: float = Field(
        default=10_000,
        gt=1,
        description="Fewest requests between two false alarms of a change, on average.",
    )
    gold_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of the answers that people label, chosen at random."
    )
    gold_project: int | None = Field(
        default=None, ge=1, description="Number of the project in whose annotation queue they appear."
    )
    gold_reference: int = Field(
        default=50, ge=20, description="Labels that proxy minus gold is compared with: the first ones."
    )
    gold_poll_s: float = Field(default=30.0, gt=0, description="Seconds between looks for people's labels.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.gold_share) != (self.gold_project is not None):
            raise ValueError("'gold_share' and 'gold_project' must be given together")
        return self


PageRole = Literal["admin", "annotator", "viewer"]
"""Roles of an account of the pages."""


class PageSettings(Settings):
    """Settings of the pages."""

    secure: bool = Field(
        default=False, description="Send cookies over HTTPS only: behind a proxy that speaks it."
    )
    trusted_user_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header in which a sign-in proxy names the user, such as `X-Forwarded-User`; "
        "needs `trusted_proxies`, and personal links do not work together with it.",
    )
    trusted_proxies: tuple[Network, ...] = Field(
        default=(),
        description="Address or network of the sign-in proxy; the header is refused from all others.",
    )
    trusted_user_role: PageRole | None = Field(
        default=None,
        description="Role of the accounts that are created for unknown users of the sign-in proxy; "
        "if not given, unknown users are refused.",
    )
    reports: tuple[Path, ...] = Field(
        default=(), description="Folder of finished runs, whose reports the pages list."
    )
    max_form_bytes: int = Field(default=1_000_000, ge=1_000)
    max_upload_bytes: int = Field(default=64_000_000, ge=1_000)
    session_hours: float = Field(default=12.0, gt=0)
    rows: int = Field(default=25, ge=1, le=500)
    """Rows per page of a list."""

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if (self.trusted_user_header is None) != (not self.trusted_proxies):
            raise ValueError("'trusted_user_header' and 'trusted_proxies' must be given together")
        if self.trusted_user_header is None and self.trusted_user_role is not None:
            raise ValueError("'trusted_user_role' needs 'trusted_user_header'")
        return self
