"""``surefoot serve``: the gateway and the pages with one database, their keys and accounts."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from surefoot.answers import AnswerStyle
from surefoot.cli import options as o
from surefoot.cli.guard import GUARD_LIMITS, open_rules
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo, note
from surefoot.guard.records import GuardSettings
from surefoot.policies.devices import Loading
from surefoot.server.gateway.records import KeyScope
from surefoot.server.gateway.settings import (
    FlagSettings,
    GatewaySettings,
    MonitorSettings,
    OutboxSettings,
    ServerSettings,
    ToolGuard,
    is_loopback,
)
from surefoot.server.pages.settings import PageSettings

if TYPE_CHECKING:
    from surefoot.server import Database, Gateway

Role = Literal["admin", "annotator", "viewer", "client"]
DatabaseName = Annotated[
    str,
    Field(
        description="SQLite file or URL (`postgresql://user@host/name`) of accounts, keys, labels, answers."
    ),
]
DEFAULT_DATABASE = "surefoot.db"

_SERVER = OptionGroup(
    common=("host", "port"),
    names={
        "limits.max_body_bytes": "--max-body",
        "limits.timeout_s": "--request-timeout",
        "limits.grace_s": "--grace",
        "limits.rate_per_minute": "--rate",
        "proxies": "--proxy",
    },
    omit=tuple(
        f"limits.{name}"
        for name in ("max_json_depth", "keep_alive_s", "max_json_parts", "max_items", "body_bytes_per_s")
    ),
)
_GATEWAY = OptionGroup(
    common=("strategy",),
    names={"offered": "--offer"},
    omit=(
        "extract",
        "overlap",
        "gather_s",
        "guard",
        *(f"flags.{name}" for name in FlagSettings.model_fields),
        *(f"outbox.{name}" for name in OutboxSettings.model_fields),
    ),
)
_GUARD = OptionGroup(
    title="Guard of tool calls",
    names={
        "enabled": "--guard",
        **{name: f"--guard-{name.replace('_', '-')}" for name in GuardSettings.model_fields},
        "hold_s": "--hold-s",
    },
    omit=GUARD_LIMITS,
)
_PAGES = OptionGroup(
    title="Pages",
    names={
        "secure": "--secure-cookies",
        "trusted_proxies": "--trusted-proxy",
    },
    omit=(
        *("max_form_bytes", "max_upload_bytes", "session_hours", "rows"),
        *("attempts", "attempt_seconds", "account_attempts", "account_seconds"),
    ),
)
_MONITOR = OptionGroup(omit=tuple(MonitorSettings.model_fields))


class UpstreamSettings(o.PolicySettings):
    """The policy behind the gateway; without one the pages are served alone."""

    name: Annotated[str, Flag(name="--policy", common=True)] = ""
    """Checkpoint directory, hub name, the server's name of the model, or `lab`; not needed with `--pages`."""
    concurrency: Annotated[int, Flag(transient=True)] = Field(default=64, ge=1)
    """Requests in flight at each server."""


class Serve(Command):
    """Serve an OpenAI-compatible gateway that verifies as it generates, and the pages for labels and traces.

    The pages are at the address itself. The first start prints a link at which the administrator signs in,
    who invites others; programs get keys with `surefoot serve keys add`. `--pages` without a policy serves
    the pages alone. The windows and alarms of the monitor are set in the table `monitor` of a `--config`
    file.

    Example: `surefoot serve --pages`

    Example: `surefoot serve --policy lab --prm prm --strategy best-of-16`

    Example: `surefoot serve --host 0.0.0.0 --policy my-model --base-url http://gpu:8001/v1 --dialect vllm
    --chat --prm Qwen/Qwen2.5-Math-PRM-7B --database postgresql://surefoot@db/surefoot`
    """

    server: Annotated[ServerSettings, _SERVER] = ServerSettings()
    database: DatabaseName = DEFAULT_DATABASE
    pages: bool | None = Field(
        default=None,
        description="Serve the pages at `/`, alone without a policy; on by default with one.",
    )
    site: Annotated[PageSettings, _PAGES] = PageSettings()
    record: bool = True
    """Store every answer with all its candidates in the database."""
    policy: UpstreamSettings = UpstreamSettings()
    loading: o.Models = Loading()
    reward_model: o.JudgeSettings = o.JudgeSettings()
    gateway: Annotated[GatewaySettings, _GATEWAY] = GatewaySettings()
    guard: Annotated[ToolGuard, _GUARD] = ToolGuard()
    guard_rules: Annotated[tuple[str, ...], Flag(name="--guard-rule")] = ()
    """Rule that calls are checked by: `tool-calls`, or another verifier of `label verify`."""
    guard_policy: Annotated[str | None, o.INPUT] = None
    """JSON file of what the rule `tool-calls` forbids."""
    extract: Annotated[tuple[AnswerStyle, ...], BeforeValidator(o.split_commas), Flag(comma=True)] = Field(
        default=("boxed", "hash", "phrase", "last_number"),
        description="Styles of final answers; the first style that finds an answer counts.",
    )
    monitor: Annotated[MonitorSettings, _MONITOR] = MonitorSettings()

    @model_validator(mode="after")
    def _guard_is_on(self) -> Self:
        if not self.guard.enabled and (self.guard_rules or self.guard_policy or self.guard != ToolGuard()):
            raise ValueError("settings of the guard need 'guard'; give --guard")
        if self.guard_policy is not None and "tool-calls" not in self.guard_rules:
            raise ValueError("'guard_policy' belongs to --guard-rule tool-calls")
        if not self.policy.name and not self.pages:
            raise ValueError("'policy' is missing; give --policy, or --pages for the pages alone")
        if not self.policy.name and (
            self.guard.enabled or self.reward_model.names or self.reward_model.verifier
        ):
            raise ValueError("a guard and a reward model need a gateway; give --policy")
        return self

    def run(self) -> None:
        from surefoot.server import create_app, create_pages_app, make_server, open_database

        with open_database(self.database) as db, ExitStack() as opened:
            gateway = self._gateway(db, opened) if self.policy.name else None
            pages = None
            if self.pages is not False:
                # over plain HTTP, as on loopback, a browser would not return a secure cookie
                pages = create_pages_app(db, self.site, gateway_monitor=gateway.monitor if gateway else None)
            self._note(db)
            app = create_app(self.server, gateway=gateway, pages=pages, keys=db.keys)
            make_server(app, self.server, log_level="info").run()

    def _gateway(self, db: Database, opened: ExitStack) -> Gateway:
        from surefoot.policies.capabilities import capabilities_of
        from surefoot.server import Gateway, resume_monitor

        scorer = opened.enter_context(self.reward_model.open(self.loading))
        verifiers = opened.enter_context(open_rules(self.guard_rules, self.guard_policy))
        settings = self.gateway.model_copy(
            update={
                "separator": o.separator(self.gateway.separator, scorer),
                "extract": self.extract,
                "overlap": bool(self.policy.base_url),
                "guard": self.guard,
            }
        )
        policy = self.policy.open(chat=settings.chat, loading=self.loading)
        continuation = capabilities_of(policy).continuation
        if not continuation.confirmed:
            note(f"strategies step by step are not offered: {continuation.evidence}")
        return Gateway(
            policy,
            scorer,
            settings=settings,
            limits=self.server.limits,
            log=db.gateway if self.record else None,
            monitor=resume_monitor(self.monitor, db.gateway, policy=policy.name, gold=db.gold),
            verifiers=verifiers,
            holds=None if self.pages is False else db.held_calls,
            gold=db.gold,
            incidents=db.incidents,
            continues=continuation.confirmed,
        )

    def _note(self, db: Database) -> None:
        if self.pages is not False and self.site.passwords and (link := first_link(db)):
            address = f"http://{self.server.host}:{self.server.port}" if self.server.port else ""
            note(f"no account yet; sign in as 'admin', once: {address}{link}")
        if self.server.needs_key and not any(key.revoked is None for key in db.keys.list()):
            note("there is no API key yet; create one with 'surefoot serve keys add NAME'")
        if self.pages is not False and not self.site.secure and not is_loopback(self.server.host):
            note(
                "warning: passwords and cookies of the pages travel in the clear; put a proxy that speaks "
                "HTTPS in front and give --secure-cookies, or serve --no-pages"
            )


def first_link(db: Database) -> str | None:
    """Path of a link for the first administrator, whose account is made; ``None`` once one can sign in."""
    from surefoot.server import invitation_link

    roles: tuple[Role, ...] = ("admin",)
    users = db.users.list() or [db.users.create("admin", roles=roles)]
    if len(users) > 1 or users[0].id not in db.users.invited():
        return None
    return invitation_link(db, users[0].id)


class DatabaseCommand(Command):
    """A command on the server's database."""

    database: DatabaseName = DEFAULT_DATABASE

    def open(self) -> AbstractContextManager[Database]:
        """The database."""
        from surefoot.server import open_database

        return open_database(self.database)


class AddKey(DatabaseCommand):
    """Create an API key, print it once, and store its hash.

    Example: `surefoot serve keys add alice --rate 60`

    Example: `surefoot serve keys add grader --scope score --expires 30d`
    """

    name: Annotated[str, Flag(argument=True)] = Field(description="Name of the key.")
    role: Role = "client"
    """`client`: the gateway; `viewer`: reads the pages; `annotator`: labels; `admin`: all."""
    rate: int | None = Field(default=None, ge=1)
    """Requests per minute; the server's limit if not given."""
    user: str | None = None
    """Account whose labels are made with it; the key never has more rights than the account."""
    project: int | None = Field(default=None, ge=1, description="Number of the only project that it opens.")
    expires: str | None = None
    """Period (`30d`, `12h`, `2w`) or last day (`2026-12-31`, UTC); never if not given."""
    scopes: Annotated[tuple[KeyScope, ...], Flag(name="--scope")] = ()
    """Scopes of the key; all scopes of its role if not given."""

    def run(self) -> None:
        from surefoot.server import expiry_of

        expires = expiry_of(self.expires, datetime.now(UTC)) if self.expires is not None else None
        with self.open() as db:
            user_id = db.users.by_name(self.user).id if self.user is not None else None
            key, _ = db.keys.create(
                self.name,
                self.role,
                user_id=user_id,
                project_id=self.project,
                rate_limit=self.rate,
                expires=expires,
                scopes=self.scopes or None,
            )
        echo(key)
        note("only the hash of the key is stored: this is the one time it is shown")


class ListKeys(DatabaseCommand):
    """List keys: number, role, rate, project, created, last used, expires, revoked, scopes and name.

    Example: `surefoot serve keys list`
    """

    def run(self) -> None:
        with self.open() as db:
            for key in db.keys.list():
                moments = (key.created, key.last_used, key.expires, key.revoked)
                times = (moment.isoformat(timespec="minutes") if moment else "-" for moment in moments)
                limits = key.rate_limit or "-", key.project_id or "-"
                scopes = ",".join(key.scopes) if key.scopes else "-"
                echo("\t".join(map(str, (key.id, key.role, *limits, *times, scopes, key.name))))


class SetKey(DatabaseCommand):
    """Change the limits of a key; a running server keeps to them from the next request on.

    Example: `surefoot serve keys set 3 --rate 120 --expires 90d`

    Example: `surefoot serve keys set 3 --rate 0 --expires never`
    """

    number: Annotated[int, Flag(argument=True)] = Field(description="Number of the key, as listed.")
    rate: int | None = Field(default=None, ge=0)
    """Requests per minute; 0 = the server's limit, as without one."""
    expires: str | None = Field(default=None, description="Period from now, last day (UTC), or `never`.")
    scopes: Annotated[tuple[KeyScope, ...], Flag(name="--scope")] = ()
    """New scopes, in place of the current ones."""

    def run(self) -> None:
        from surefoot.server import KeyLimits, expiry_of

        limits = KeyLimits()
        if self.rate is not None:
            limits["rate_limit"] = self.rate or None
        if self.scopes:
            limits["scopes"] = self.scopes
        if self.expires is not None:
            never = self.expires == "never"
            limits["expires"] = None if never else expiry_of(self.expires, datetime.now(UTC))
        with self.open() as db:
            db.keys.change(self.number, **limits)


class RevokeKey(DatabaseCommand):
    """Revoke a key for good; a running server refuses it from the next request on.

    Example: `surefoot serve keys revoke 3`
    """

    number: Annotated[int, Flag(argument=True)] = Field(description="Number of the key, as listed.")

    def run(self) -> None:
        with self.open() as db:
            db.keys.revoke(self.number)


class AddUser(DatabaseCommand):
    """Create an account, and print its password once.

    Example: `surefoot serve users add ada --role admin`

    Example: `surefoot serve users add ada@example.org --no-password`
    """

    name: Annotated[str, Flag(argument=True)] = Field(description="Name to sign in with.")
    role: tuple[Role, ...] = Field(default=("annotator",), description="What the account may do.")
    password: bool = True
    """Create a password; accounts behind a sign-in proxy need none."""

    def run(self) -> None:
        password = secrets.token_urlsafe(15) if self.password else None
        with self.open() as db:
            db.users.create(self.name, password=password, roles=self.role)
        if password is not None:
            echo(password)
            note(f"{self.name}: {', '.join(self.role)}; the password is shown only this once")


class Prune(DatabaseCommand):
    """Delete old answers of the gateway, with all their candidates, and held calls.

    Answers of a project are also deleted after its own `retention_days`.

    Example: `surefoot serve prune --older-than 90`
    """

    older_than: float = Field(ge=0, description="Age in days; older answers are deleted.")

    def run(self) -> None:
        at, deleted = datetime.now(UTC), 0
        limit = at - timedelta(days=self.older_than)
        with self.open() as db:
            while count := db.gateway.prune(limit):
                deleted += count
            for project in db.projects.list(archived=True):
                if days := project.protocol.retention_days:
                    while count := db.gateway.prune(at - timedelta(days=days), project_id=project.id):
                        deleted += count
            held = db.held_calls.prune(limit)
        note(f"{deleted} requests and {held} held calls deleted")
