"""``surefoot serve keys``, ``users`` and ``prune``: who may use the server, and how long it remembers."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

keys_app = typer.Typer(help="API keys of the server.", no_args_is_help=True)
users_app = typer.Typer(help="Accounts of the pages.", no_args_is_help=True)

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        help="SQLite file, or URL (postgresql://user@host/name), of accounts, keys, labels and answers.",
    ),
]


@keys_app.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="Who gets it.")],
    database: DatabaseOption = "surefoot.db",
    role: Annotated[
        str,
        typer.Option(
            "--role", help="client: the gateway; viewer: the pages, to read; annotator; admin: all."
        ),
    ] = "client",
    rate: Annotated[
        int | None, typer.Option("--rate", min=1, help="Requests a minute; else the server's.")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", help="Account whose labels are made with it; it has no more rights."),
    ] = None,
    project: Annotated[
        int | None, typer.Option("--project", min=1, help="Number of the one project that it is for.")
    ] = None,
) -> None:
    """Make a key, print it once, and keep its hash.

    Example: `surefoot serve keys add alice --rate 60`
    """
    from surefoot.annotation.database import open_database
    from surefoot.cli._shared import choice

    choice("--role", role, "client", "viewer", "annotator", "admin")
    with open_database(database) as db:
        user_id = db.users.by_name(user).id if user is not None else None
        key, _ = db.keys.create(name, cast("Any", role), user_id=user_id, project_id=project, rate_limit=rate)
    typer.echo(key)
    typer.echo("the key is kept as a hash, and shown only now", err=True)


@keys_app.command("list")
def list_keys(database: DatabaseOption = "surefoot.db") -> None:
    """List keys: number, role, requests a minute, project, made, last used, revoked, and whose.

    Example: `surefoot serve keys list`
    """
    from surefoot.annotation.database import open_database

    with open_database(database) as db:
        for key in db.keys.list():
            moments = (key.created, key.last_used, key.revoked)
            cells = (
                key.id,
                key.role,
                key.rate_limit or "-",
                key.project_id or "-",
                *("-" if one is None else one.isoformat(timespec="minutes") for one in moments),
                key.name,
            )
            typer.echo("\t".join(map(str, cells)))


@keys_app.command("revoke")
def revoke_key(
    number: Annotated[int, typer.Argument(help="Number of the key, as listed.")],
    database: DatabaseOption = "surefoot.db",
) -> None:
    """Take a key back for good; a running server minds it with the next request.

    Example: `surefoot serve keys revoke 3`
    """
    from surefoot.annotation.database import open_database

    with open_database(database) as db:
        db.keys.revoke(number)


@users_app.command("add")
def add_user(
    name: Annotated[str, typer.Argument(help="Name to sign in with.")],
    database: DatabaseOption = "surefoot.db",
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="admin, annotator, viewer or client; may be repeated; else annotator."),
    ] = None,
) -> None:
    """Make an account, and print its password once.

    Example: `surefoot serve users add ada --role admin`
    """
    import secrets

    from surefoot.annotation.database import open_database
    from surefoot.cli._shared import choice

    roles = role or ["annotator"]
    for one in roles:
        choice("--role", one, "admin", "annotator", "viewer", "client")
    password = secrets.token_urlsafe(15)
    with open_database(database) as db:
        db.users.create(name, password=password, roles=cast("Any", tuple(roles)))
    typer.echo(password)
    typer.echo(f"{name}: {', '.join(roles)}; the password is shown only now", err=True)


def prune(
    days: Annotated[
        float, typer.Option("--older-than", min=0, help="Days; what the gateway answered before goes.")
    ],
    database: DatabaseOption = "surefoot.db",
) -> None:
    """Delete old answers of the gateway, with all their candidates; the figures by the hour stay.

    Example: `surefoot serve prune --older-than 90`
    """
    from datetime import UTC, datetime, timedelta

    from surefoot.annotation.database import open_database

    before, deleted = datetime.now(UTC) - timedelta(days=days), 0
    with open_database(database) as db:
        while count := db.gateway.prune(before):
            deleted += count
    typer.echo(f"{deleted} requests deleted", err=True)
