"""``surefoot serve``: the gateway and the pages over one database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import typer

from surefoot.cli._groups import grouped
from surefoot.cli._serve_options import Bounds, Listening, Verifying, Writing
from surefoot.cli.serve_accounts import keys_app, prune, users_app

if TYPE_CHECKING:
    from fastapi import FastAPI

    from surefoot.annotation.database import Database
    from surefoot.gateway import GatewaySettings, Monitor, MonitorSettings
    from surefoot.gateway.settings import Limits, ServerSettings
    from surefoot.models.scorer import CheckpointScorer
    from surefoot.protocols import Policy

app = typer.Typer(help="Serve the gateway and the pages.", invoke_without_command=True)
app.add_typer(keys_app, name="keys")
app.add_typer(users_app, name="users")
app.command("prune")(prune)


def serve(
    context: typer.Context, listening: Listening, writing: Writing, verifying: Verifying, bounds: Bounds
) -> None:
    """Serve an OpenAI-compatible gateway that verifies as it generates, and the pages for labels and traces.

    The pages are at the address itself; make an account first with `surefoot serve users add`, and keys for
    programs with `surefoot serve keys add`.

    Example: `surefoot serve --prm prm --strategy best-of-16`

    Example: `surefoot serve --host 0.0.0.0 --policy my-model --base-url http://gpu:8001/v1 --dialect vllm
    --chat --prm Qwen/Qwen2.5-Math-PRM-7B --database postgresql://surefoot@db/surefoot`
    """
    if context.invoked_subcommand is not None:
        return
    from surefoot.annotation.database import open_database
    from surefoot.cli._shared import checked_options, open_policy, settings_file
    from surefoot.gateway import Gateway, MonitorSettings
    from surefoot.gateway.app import create_app, make_server
    from surefoot.gateway.settings import is_loopback

    with checked_options():
        limits = bounds.limits()
        server = _server_settings(listening, limits)
        settings = _gateway_settings(writing, verifying)
        watched = MonitorSettings()
        if verifying.monitor is not None:
            watched = settings_file("--monitor", verifying.monitor, MonitorSettings)
    policy = open_policy(
        writing.policy,
        base_url=writing.base_url,
        dialect=writing.dialect,
        chat=writing.chat,
        concurrency=writing.concurrency,
        batch_size=writing.batch_size,
        device=writing.device,
        timeout=writing.timeout,
    )
    scorer = None
    if verifying.prm is not None:
        from surefoot.models.loading import load_prm

        scorer = load_prm(
            verifying.prm, family=verifying.family, calibrated=verifying.calibrated, device=writing.device
        )
    with open_database(listening.database) as db:
        if server.needs_key and not any(key.revoked is None for key in db.keys.list()):
            typer.echo("there is no API key yet; make one with 'surefoot serve keys add NAME'", err=True)
        if listening.pages and not listening.secure_cookies and not is_loopback(server.host):
            typer.echo(
                "warning: passwords and cookies of the pages travel in the clear; put a proxy that speaks "
                "HTTPS in front and give --secure-cookies, or serve --no-pages",
                err=True,
            )
        gateway = Gateway(
            policy,
            scorer,
            settings=settings,
            limits=limits,
            log=db.gateway if listening.record else None,
            monitor=_monitor(watched, db, policy, scorer),
        )
        pages = _pages(listening, db) if listening.pages else None
        make_server(
            create_app(server, gateway=gateway, pages=pages, keys=db.keys), server, log_level="info"
        ).run()


def _pages(listening: Listening, db: Database) -> FastAPI:
    from surefoot.annotation import PageSettings, create_pages_app

    # over plain HTTP, as on loopback, a browser would not send a secure cookie back
    return create_pages_app(db, PageSettings(secure=listening.secure_cookies, runs=listening.runs))


def _monitor(
    settings: MonitorSettings, db: Database, policy: Policy, scorer: CheckpointScorer | None
) -> Monitor:
    from surefoot.gateway import Monitor, resume_monitor

    if scorer is None:
        return Monitor(settings)
    return resume_monitor(settings, db.gateway, policy=policy.name, scorer=scorer.name)


def _server_settings(listening: Listening, limits: Limits) -> ServerSettings:
    from surefoot.gateway.settings import ServerSettings

    return ServerSettings(
        host=listening.host,
        port=listening.port,
        require_key=listening.require_key,
        open_health=listening.open_health,
        limits=limits,
    )


def _gateway_settings(writing: Writing, verifying: Verifying) -> GatewaySettings:
    from surefoot.gateway import GatewaySettings
    from surefoot.gateway.settings import OFFERED

    return GatewaySettings(
        strategy=verifying.strategy,
        chat=writing.chat,
        template=writing.template,
        temperature=writing.temperature,
        top_p=writing.top_p,
        separator=writing.separator.replace(r"\n", "\n").replace(r"\t", "\t"),
        step_tokens=writing.step_tokens,
        max_steps=writing.max_steps,
        threshold=verifying.threshold,
        retries=verifying.retries,
        abstain_below=verifying.abstain_below,
        extract=cast("Any", tuple(writing.extract.split(","))),
        overlap=writing.base_url is not None,
        ignore_tools=writing.ignore_tools,
        refusal_as_text=verifying.refusal_as_text,
        candidates=cast("Any", verifying.candidates),
        offered=tuple(verifying.offer) if verifying.offer else OFFERED,
    )


app.callback()(grouped(serve))
