"""The command line: :data:`app` finds the chosen command in the table and imports only its module."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from surefoot.cli.commands import COMMANDS, GROUPS
from surefoot.cli.endings import told
from surefoot.cli.terminal import echo, note
from surefoot.errors import IncompleteError, SurefootError, unknown
from surefoot.extras import sentence

if TYPE_CHECKING:
    from surefoot.cli.settings import Command

INCOMPLETE = 3
"""Exit status of a command that finished with incomplete work; the output holds what succeeded."""
INTERRUPTED = 130
"""Exit status of a command that the keyboard interrupted."""


def load_settings(path: str) -> type[Command]:
    """The settings class of a command, such as ``train prm``."""
    module, _, name = COMMANDS[path][0].partition(":")
    command: type[Command] = getattr(import_module(f"surefoot.cli.{module}"), name)
    return command


def load_command(path: str) -> click.Command:
    """The command or group at a path, such as ``train prm``."""
    if path not in COMMANDS:
        return CommandGroup(path)
    from surefoot.cli.parser import SettingsCommand

    command = SettingsCommand(path.rpartition(" ")[2], load_settings(path))
    return CommandGroup(path, command) if path in GROUPS else command


class CommandGroup(click.Group):
    """A group whose commands come from the table; one that is also a command runs without a subcommand."""

    def __init__(self, path: str, command: click.Command | None = None, **attributes: Any) -> None:
        self.path = path
        self.runnable = command
        name = path.rpartition(" ")[2] or "surefoot"
        if command is None:
            super().__init__(name, help=GROUPS.get(path), no_args_is_help=True, **attributes)
        else:
            super().__init__(
                name,
                params=command.params,
                callback=command.callback,
                help=command.help,
                invoke_without_command=True,
                no_args_is_help=False,
            )

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names below this group, in the order of the table."""
        prefix = f"{self.path} " if self.path else ""
        below = (
            path.removeprefix(prefix) for path in COMMANDS if path.startswith(prefix) and path != self.path
        )
        return list(dict.fromkeys(path.split(" ")[0] for path in below))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; ``None`` for an unknown name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return load_command(f"{self.path} {cmd_name}".strip())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a similar name for an unknown command."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            ctx.fail(unknown("command", args[0], names))
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The description, with the examples of a group that is also a command."""
        if self.runnable is None:
            super().format_help_text(ctx, formatter)
        else:
            self.runnable.format_help_text(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options, then commands with the lines of the table."""
        if self.runnable is None:
            click.Command.format_options(self, ctx, formatter)
        else:
            self.runnable.format_options(ctx, formatter)
        rows = []
        for name in self.list_commands(ctx):
            path = f"{self.path} {name}".strip()
            rows.append((name, GROUPS[path] if path in GROUPS else COMMANDS[path][1]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from surefoot import __version__

        echo(f"surefoot {__version__}")
        context.exit()


app = CommandGroup(
    "",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        )
    ],
)
app.help = "Process supervision: label steps, train reward models on them, choose better answers with them."


def main() -> None:
    """Run the command line. An error of the package, or of a file, is one sentence and a status of 1 or 3."""
    # transformers would add a progress bar for every model that it loads
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        sys.exit(app.main(prog_name="surefoot", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from error
    except click.Abort as error:
        _explain_interrupt()
        raise SystemExit(INTERRUPTED) from error
    except (SurefootError, OSError) as error:
        note(f"surefoot: {told(error)}")
        raise SystemExit(INCOMPLETE if isinstance(error, IncompleteError) else 1) from error
    except ModuleNotFoundError as error:
        if (missing := sentence(error.name or "")) is None:
            raise
        note(f"surefoot: this command needs {missing}")
        raise SystemExit(1) from error
    except SystemExit as end:
        if end.code == 143:  # SIGTERM, see endings.py
            _explain_interrupt()
        raise


def _explain_interrupt() -> None:
    note("surefoot: interrupted; start the same command again to resume")
