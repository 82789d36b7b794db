"""Options of ``surefoot serve``, by what they are about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o
from surefoot.cli.serve_accounts import DatabaseOption

if TYPE_CHECKING:
    from surefoot.gateway.settings import Limits

Prm = Annotated[
    str | None,
    typer.Option("--prm", "-m", help="Checkpoint directory or hub name of a reward model of steps."),
]


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where it listens, and who may ask."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 = any that is free.")] = 8000
    require_key: Annotated[
        bool,
        typer.Option("--require-key", help="Ask for an API key on loopback, too; beyond it one always is."),
    ] = False
    open_health: Annotated[
        bool, typer.Option("--open-health", help="Answer /health and /ready without a key.")
    ] = False
    database: DatabaseOption = "surefoot.db"
    pages: Annotated[
        bool, typer.Option("--pages/--no-pages", help="Serve the pages, too, at the address itself.")
    ] = True
    secure_cookies: Annotated[
        bool, typer.Option("--secure-cookies", help="Cookies over HTTPS only: behind a proxy that speaks it.")
    ] = False
    runs: Annotated[
        Path | None, typer.Option("--runs", help="Directory whose runs and saved trees the pages show.")
    ] = None
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record", help="Keep every answer with all its candidates in the database."
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class Writing:
    """The policy."""

    policy: o.PolicyName = "lab"
    base_url: o.BaseUrl = None
    dialect: o.Dialect = "openai"
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Pass messages on as they are, through the policy's chat template."),
    ] = False
    ignore_tools: Annotated[
        bool,
        typer.Option("--ignore-tools", help="Pass over tools that nobody would mind; else they are refused."),
    ] = False
    template: o.Template = "{problem}\n"
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=2, help="For requests that name none.")
    ] = 0.8
    top_p: Annotated[float, typer.Option("--top-p", min=0, max=1, help="For requests that name none.")] = 1.0
    separator: Annotated[
        str, typer.Option("--separator", help=r"Text that ends a step; \n is a line break, \t a tab.")
    ] = r"\n"
    step_tokens: Annotated[
        int, typer.Option("--step-tokens", min=1, help="Longest step; it is cut there.")
    ] = 256
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Steps after which the rest is written in one piece.")
    ] = 40
    extract: o.Extract = "boxed,hash,phrase,last_number"
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, help="Requests in flight at the policy's server.")
    ] = 64
    timeout: o.Timeout = 120.0
    batch_size: o.BatchSize = 256
    device: o.Device = "cpu"


@dataclass(frozen=True, kw_only=True)
class Verifying:
    """The reward model, and what is made of its scores."""

    prm: Prm = None
    family: Annotated[
        str | None,
        typer.Option("--family", help="Published family, where name and files do not tell, e.g. qwen-prm."),
    ] = None
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Put scores through the checkpoint's calibration.json.")
    ] = False
    strategy: Annotated[
        str,
        typer.Option("--strategy", help="What the model name `surefoot` stands for: best-of-16, beam-4x4, …"),
    ] = "plain"
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="A step below this is bad.")
    ] = 0.5
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, max=100, help="Draws after the first, of a step that is rejected."),
    ] = 3
    abstain_below: Annotated[
        float | None,
        typer.Option("--abstain-below", min=0, max=1, help="Withhold answers whose score is below this."),
    ] = None
    offer: Annotated[
        list[str] | None,
        typer.Option(
            "--offer", help="Strategy that /v1/models lists, e.g. best-of-4; may be repeated; else a choice."
        ),
    ] = None
    candidates: Annotated[
        str,
        typer.Option("--candidates", help="Solutions that answers show with the text: all, chosen or none."),
    ] = "all"
    refusal_as_text: Annotated[
        bool,
        typer.Option(
            "--refusal-as-text",
            help="Say in the text why an answer was withheld; some clients show no refusal.",
        ),
    ] = False
    monitor: Annotated[
        Path | None,
        typer.Option(
            "--monitor", help="JSON file of the monitor's windows and bounds; see docs/how-to/serve.md."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Limits."""

    running: Annotated[int, typer.Option("--running", min=1, help="Requests worked on at the same time.")] = (
        256
    )
    waiting: Annotated[
        int, typer.Option("--waiting", min=0, help="Requests that may wait; the next is answered 429.")
    ] = 256
    request_timeout: Annotated[
        float,
        typer.Option("--request-timeout", min=0.001, help="Seconds from a request's arrival to its answer."),
    ] = 300.0
    grace: Annotated[
        float,
        typer.Option("--grace", min=0, help="Seconds that running requests have when the server stops."),
    ] = 30.0
    max_body: Annotated[int, typer.Option("--max-body", min=1, help="Largest body, in bytes.")] = 2_000_000
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest solution that a client may ask for.")
    ] = 8192
    default_tokens: Annotated[
        int, typer.Option("--default-tokens", min=1, help="Longest solution of a client that does not say.")
    ] = 2048
    max_n: Annotated[int, typer.Option("--max-n", min=1, help="Choices of one request.")] = 16
    max_candidates: Annotated[
        int, typer.Option("--max-candidates", min=1, help="Solutions that one request draws at once.")
    ] = 128
    max_items: Annotated[
        int, typer.Option("--max-items", min=1, help="Solutions of one scoring request.")
    ] = 256
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Requests a minute of a key that has no rate of its own."),
    ] = None

    def limits(self) -> Limits:
        """The limits. Raises ``ValidationError`` (pydantic)."""
        from surefoot.gateway.settings import Limits

        return Limits(
            max_body_bytes=self.max_body,
            max_tokens=self.max_tokens,
            default_tokens=self.default_tokens,
            max_n=self.max_n,
            max_candidates=self.max_candidates,
            max_items=self.max_items,
            running=self.running,
            waiting=self.waiting,
            timeout_s=self.request_timeout,
            grace_s=self.grace,
            rate_per_minute=self.rate,
        )
