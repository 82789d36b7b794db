"""``surefoot serve``: the gateway and the pages with one database, their keys, accounts and sessions."""

from __future__ import annotations

import json
import logging
import socket
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot import policies
from surefoot import server as s
from surefoot.cli import options as o
from surefoot.cli.guard import open_rules
from surefoot.cli.runs import RecordFiles, store_attachment
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo, note, note_count
from surefoot.errors import NotFoundError, RecordError, RunError, counted
from surefoot.io import atomic_file
from surefoot.io.tables import Seen
from surefoot.policies.devices import Loading
from surefoot.records import Attachment, trusted_copy
from surefoot.server.gateway.settings import (
    GatewaySettings,
    MonitorSettings,
    PageSettings,
    ServerSettings,
    ToolGuard,
    is_loopback,
)
from surefoot.server.logs import LogHandler
from surefoot.server.permissions import KeyRole, Role

DatabaseName = Annotated[
    str,
    Field(
        description="SQLite file or URL (`postgresql://user@host/name`) of accounts, keys, labels, answers."
    ),
]
DEFAULT_DATABASE = "surefoot.db"

_SERVER = OptionGroup(
    only=("host", "port", "require_key"),
    common=("host", "port"),
)
_PAGES = OptionGroup(title="Pages", only=("secure", "reports"), names={"secure": "--secure-cookies"})
_JUDGE = OptionGroup(only=("names", "family", "calibrated", "verifier"))
_GATEWAY = OptionGroup(
    only=(
        *("strategy", "chat", "template", "separator", "threshold", "abstain_below"),
        *("candidates", "ignore_tools", "refusal_as_text"),
        *("guard.enabled", "guard.threshold", "guard.on_rule", "guard.monitor_sees"),
    ),
    names={
        "guard.enabled": "--guard",
        "guard.threshold": "--guard-threshold",
        "guard.on_rule": "--guard-on-rule",
        "guard.monitor_sees": "--guard-monitor-sees",
    },
    common=("strategy", "chat", "guard.enabled"),
)
_MONITOR = OptionGroup(omit=("*",))


class UpstreamSettings(o.PolicySettings):
    """The policy behind the gateway; without one the pages are served alone."""

    name: Annotated[str, Flag(name="--policy", common=True)] = ""
    """Checkpoint directory, hub name, the server's name of the model, or `lab`; not needed with `--pages`."""
    concurrency: Annotated[int, Flag(transient=True)] = Field(default=64, ge=1)
    """Requests in flight at the server."""


class Serve(Command):
    """Serve an OpenAI-compatible gateway that verifies as it generates, and the pages for labels and traces.

    The pages are at the address itself. `surefoot serve users add NAME --role admin` prints the link at which
    an administrator signs in, who invites others; programs get keys with `surefoot serve keys add`. `--pages`
    without a policy serves the pages alone. Limits, sampling, sign-in, the guard's details, flags
    and the monitor are set in a `--config` file; `--help-all` lists them.

    Example: `surefoot serve --pages`

    Example: `surefoot serve --policy lab --prm prm --strategy best-of-n:n=16`

    Example: `surefoot serve --host 0.0.0.0 --policy my-model --base-url http://gpu:8001/v1 --dialect vllm
    --chat --prm Qwen/Qwen2.5-Math-PRM-7B --database postgresql://surefoot@db/surefoot`
    """

    server: Annotated[ServerSettings, _SERVER] = ServerSettings()
    database: Annotated[DatabaseName, Flag(common=True)] = DEFAULT_DATABASE
    pages: Annotated[bool | None, Flag(common=True)] = Field(
        default=None, description="Serve the pages at `/`, alone without a policy; on by default with one."
    )
    site: Annotated[PageSettings, _PAGES] = PageSettings()
    record: bool = True
    """Store every answer with all its candidates in the database."""
    policy: UpstreamSettings = UpstreamSettings()
    loading: o.Models = Loading()
    reward_model: Annotated[o.JudgeSettings, _JUDGE] = o.JudgeSettings()
    gateway: Annotated[GatewaySettings, _GATEWAY] = GatewaySettings()
    guard_rules: Annotated[tuple[str, ...], Flag(name="--guard-rule")] = ()
    """Rule that calls are checked by: `tool-calls`, or another verifier of `label FILE verify`."""
    guard_policy: Annotated[str | None, o.INPUT] = None
    """JSON file of what the rule `tool-calls` forbids."""
    monitor: Annotated[MonitorSettings, _MONITOR] = MonitorSettings()

    @model_validator(mode="after")
    def _guard_is_on(self) -> Self:
        guard = self.gateway.guard
        if not guard.enabled and (self.guard_rules or self.guard_policy or guard != ToolGuard()):
            raise ValueError("settings of the guard need 'guard'; give --guard")
        if self.guard_policy is not None and "tool-calls" not in self.guard_rules:
            raise ValueError("'guard_policy' belongs to --guard-rule tool-calls")
        if not self.policy.name and not self.pages:
            raise ValueError("'policy' is missing; give --policy, or --pages for the pages alone")
        if not self.policy.name and (guard.enabled or self.reward_model.names or self.reward_model.verifier):
            raise ValueError("a guard and a reward model need a gateway; give --policy")
        return self

    def run(self) -> None:
        _check_port(self.server.host, self.server.port)
        logging.basicConfig(handlers=[LogHandler()])
        with s.open_database(self.database) as db, ExitStack() as opened:
            gateway = self._gateway(db, opened) if self.policy.name else None
            pages = None
            if self.pages is not False:
                # over plain HTTP, as on loopback, a browser would not return a secure cookie
                pages = s.create_pages_app(
                    db, self.site, gateway_monitor=gateway.monitor if gateway else None
                )
            self._note(db)
            app = s.create_app(self.server, gateway=gateway, pages=pages, keys=db.keys)
            s.make_server(app, self.server, log_level="info").run()

    def _gateway(self, db: s.Database, opened: ExitStack) -> s.Gateway:
        scorer = opened.enter_context(self.reward_model.open(self.loading))
        verifiers = opened.enter_context(open_rules(self.guard_rules, self.guard_policy))
        separator = o.separator(self.gateway.separator, scorer)
        settings = self.gateway.model_copy(update={"separator": separator})
        policy = self.policy.open(chat=settings.chat, loading=self.loading)
        continuation = policies.capabilities_of(policy).continuation
        if not continuation.confirmed:
            note(f"strategies step by step are not offered: {continuation.evidence}")
        return s.Gateway(
            policy,
            scorer,
            settings=settings,
            limits=self.server.limits,
            log=db.gateway if self.record else None,
            monitor=s.resume_chart(self.monitor, db.gateway, policy=policy.name, gold=db.gold),
            verifiers=verifiers,
            holds=None if self.pages is False else db.held_calls,
            gold=db.gold,
            continues=continuation.confirmed,
        )

    def _note(self, db: s.Database) -> None:
        if self.pages is not False and not db.users.list():
            note("no account exists yet; create one with 'surefoot serve users add NAME --role admin'")
        if self.server.needs_key and not any(key.revoked is None for key in db.keys.list()):
            note("there is no API key yet; create one with 'surefoot serve keys add NAME'")
        if self.pages is not False and not self.site.secure and not is_loopback(self.server.host):
            note(
                "warning: links and cookies of the pages travel in the clear; put a proxy that speaks "
                "HTTPS in front and give --secure-cookies, or serve --no-pages"
            )


def _check_port(host: str, port: int) -> None:
    """Raise ``RunError`` if the port cannot be listened on, before anything is created."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RunError(
                f"port {port} of {host} cannot be used ({error.strerror}); give another --port"
            ) from error


class DatabaseCommand(Command):
    """A command on the server's database."""

    database: DatabaseName = DEFAULT_DATABASE


class AddKey(DatabaseCommand):
    """Create an API key, print it once, and store its hash.

    Example: `surefoot serve keys add alice --rate 60`

    Example: `surefoot serve keys add dashboard --role viewer --expires 30`
    """

    name: Annotated[str, Flag(argument=True)] = Field(description="Name of the key.")
    role: KeyRole = "client"
    """`client`: the gateway; `viewer`: reads the pages and metrics; `admin`: all but labels."""
    rate: int | None = Field(default=None, ge=1)
    """Requests per minute; the server's limit if not given."""
    project: int | None = Field(default=None, ge=1, description="Number of the only project that it opens.")
    expires: float | None = Field(default=None, gt=0, le=36500)
    """Days until it ends; never if not given."""

    def run(self) -> None:
        expires = datetime.now(UTC) + timedelta(self.expires) if self.expires is not None else None
        with s.open_database(self.database) as db:
            key, _ = db.keys.create(
                self.name, self.role, project_id=self.project, rate_limit=self.rate, expires=expires
            )
        echo(key)
        note("only the hash of the key is stored: this is the one time it is shown")


class ListKeys(DatabaseCommand):
    """List keys: number, role, rate, project, created, expires, revoked and name.

    Example: `surefoot serve keys list`
    """

    def run(self) -> None:
        with s.open_database(self.database) as db:
            for key in db.keys.list():
                moments = (key.created, key.expires, key.revoked)
                times = (moment.isoformat(timespec="minutes") if moment else "-" for moment in moments)
                limits = key.rate_limit or "-", key.project_id or "-"
                echo("\t".join(map(str, (key.id, key.role, *limits, *times, key.name))))


class RevokeKey(DatabaseCommand):
    """Revoke a key for good; a running server refuses it within a second.

    Example: `surefoot serve keys revoke 3`
    """

    number: Annotated[int, Flag(argument=True)] = Field(description="Number of the key, as listed.")

    def run(self) -> None:
        with s.open_database(self.database) as db:
            db.keys.revoke(self.number)


class AddUser(DatabaseCommand):
    """Create an account, and print its owner's personal link once.

    Whoever has the link can sign in with it. Behind a sign-in proxy it is not needed. Under *People & keys*
    an administrator can make a new one, which ends the old one.

    Example: `surefoot serve users add ada --role admin`
    """

    name: Annotated[str, Flag(argument=True)] = Field(description="Name of the account.")
    role: Role = Field(default="annotator", description="What the account may do.")

    def run(self) -> None:
        with s.open_database(self.database) as db:
            user = db.users.create(self.name, self.role)
            echo(s.personal_link(db, user.id))
        note(f"{user.name}: {self.role}; put the server's address before the link, shown only now")


class Prune(DatabaseCommand):
    """Delete old answers of the gateway, with all their candidates, and held calls.

    Answers of a project are also deleted after its own `retention_days`.

    Example: `surefoot serve prune --older-than 90`
    """

    older_than: float = Field(ge=0, description="Age in days; older answers are deleted.")

    def run(self) -> None:
        at, deleted = datetime.now(UTC), 0
        limit = at - timedelta(days=self.older_than)
        with s.open_database(self.database) as db:
            while count := db.gateway.prune(limit):
                deleted += count
            for project in db.projects.list(archived=True):
                if days := project.protocol.retention_days:
                    while count := db.gateway.prune(at - timedelta(days=days), project_id=project.id):
                        deleted += count
            held = db.held_calls.prune(limit)
        note(f"{counted(deleted, 'request')} and {counted(held, 'held call')} deleted")


class Sessions(DatabaseCommand):
    """Write the sessions that a gateway recorded as traces, scores and episodes.

    A session is what requests with the same `X-Session-Id` (or `metadata.session_id`) and key belong to. Its
    turns are put together again: a trace for the conversation, one more for each place where it was continued
    twice. `episodes.jsonl` has one line a trace. Its turns have the fields of
    `surefoot.rl.engines.RecordedTurn`, with the score as reward or null, and `guard` says whether the guard
    released each first message. Images are files in `attachments`.

    Example: `surefoot serve sessions --database surefoot.db --out sessions`
    """

    out: o.OutDirectory = Field(description="Directory for problems, traces, scores and episodes.")
    session: Annotated[tuple[str, ...], Flag()] = Field(default=(), description="Write these sessions alone.")

    def run(self) -> None:
        file = Path(self.database.removeprefix("sqlite:///"))
        if "://" not in str(file) and not file.exists():
            raise RecordError(f"{file}: database not found; give the server's database")
        counts = dict.fromkeys(("sessions", "traces", "turns", "scored", "lost"), 0)
        with s.open_database(self.database) as db, ExitStack() as files:
            names = [pair for pair in db.gateway.sessions() if not self.session or pair[0] in self.session]
            if not names:
                which = f"session {self.session[0]!r} is not" if self.session else "no session is"
                raise RecordError(
                    f"{which} in the database; requests need the header X-Session-Id to belong to one"
                )
            self.out.mkdir(parents=True, exist_ok=True)
            records = files.enter_context(RecordFiles(self.out))
            episodes = files.enter_context(atomic_file(self.out / "episodes.jsonl"))
            seen = files.enter_context(closing(Seen()))

            def kept(image: Attachment) -> Attachment:
                try:
                    stored = db.traces.image(None, image.sha256 or "")
                except NotFoundError:  # deleted with older requests
                    counts["lost"] += 1
                    return image
                return trusted_copy(image, {"uri": store_attachment(self.out, *stored)})

            for name, key_id in names:
                counts["sessions"] += 1
                for line in s.session_conversations(db.gateway.session(name, key_id=key_id)):
                    new = [] if seen.times(line.problem.id) else [line.problem]
                    line = line.with_attachments(kept)
                    records.write(problems=new, traces=[line.trace], scores=line.scores())
                    episodes.write((json.dumps(line.episode()) + "\n").encode())
                    counts["traces"] += 1
                    counts["turns"] += len(line.turns)
                    counts["scored"] += sum(turn.score is not None for turn in line.turns)
            note_count(counts["lost"], "image", "named, not shown: deleted with older requests")
            if not counts["traces"]:
                raise RecordError(f"the database has {len(names)} sessions, and none has an answer")
        note(
            f"{self.out}: {counted(counts['sessions'], 'session')}, {counted(counts['traces'], 'trace')}, "
            f"{counted(counts['turns'], 'turn')}, {counts['scored']} of them scored"
        )
