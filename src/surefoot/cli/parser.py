"""From the command line to settings: click commands, configuration files, and errors that name the option."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ValidationError

from surefoot.cli.endings import plain_endings
from surefoot.cli.runs import recorded
from surefoot.cli.settings import (
    REQUIRED,
    Command,
    Option,
    examples,
    help_text,
    is_settings,
    options_of,
    output_fields,
    saving_memory,
    settings_fields,
)
from surefoot.cli.terminal import echo
from surefoot.errors import RunError, unknown
from surefoot.spec import dashed

C = TypeVar("C", bound=Command)

FILE_ENDINGS = (".jsonl", ".json", ".parquet", ".gz", ".csv", ".html")
"""A directory with such a name was meant as a file."""
_FEW = 12
"""A command with so few options shows all of them by ``--help``."""


class SettingsCommand(click.Command):
    """A command made of a settings class; its options are the fields."""

    def __init__(self, name: str, settings: type[Command]) -> None:
        self.settings = settings
        self.options = [option for option in options_of(settings) if option.names]
        names = [name for option in self.options for name in option.names]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{settings.__name__}: two options are named {min(repeated)}")
        super().__init__(name, params=self._parameters(), callback=self._run, help=help_text(settings))

    def _parameters(self) -> list[click.Parameter]:
        return [
            *(_parameter(number, option) for number, option in enumerate(self.options)),
            *([click.Option(["--force"], is_flag=True)] if output_fields(self.settings) else []),
            click.Option(["--config"]),
            click.Option(["--set", "assignments"], multiple=True),
            click.Option(
                ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all_options
            ),
        ]

    def _run(self, **values: Any) -> None:
        if click.get_current_context().invoked_subcommand is not None:
            return  # a group that is also a command
        flags = {
            option.path: values[f"value_{number}"]
            for number, option in enumerate(self.options)
            if values[f"value_{number}"] not in (None, ())
        }
        file = Path(values["config"]) if values["config"] else None
        settings = build(self.settings, flags, file=file, assignments=values["assignments"])
        for option in self.options:
            if option.flag.directory and getattr(settings, option.path[0]).suffix in FILE_ENDINGS:
                out = getattr(settings, option.path[0])
                raise RunError(f"{option.name} {out} is a directory here: leave out {out.suffix}")
        outputs = settings.outputs()
        _refuse_outputs(outputs, existing=not values.get("force"))
        with plain_endings(outputs, saving_memory(self.settings)), recorded(settings):
            settings.run()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description, then the examples, each on one line that can be copied."""
        super().format_help_text(ctx, formatter)
        if lines := examples(self.settings):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all of them, in their panels."""
        options = self.options if ctx.meta.get("all") else first_screen(self.settings)
        panels: dict[str, list[tuple[str, str]]] = {}
        for option in options:
            title = "Arguments" if option.flag.argument else option.panel or "Options"
            default = option.default_text
            default = default if default in ("", "required") else f"default: {default}"
            notes = "; ".join(note for note in (default, *option.notes) if note)
            panels.setdefault(title, []).append(
                (option.usage, f"{option.description} [{notes}]" if notes else option.description)
            )
        in_full = bool(ctx.meta.get("all"))
        for option in self.options:
            if option.flag.methods:
                title = "Methods" if option.flag.argument else f"Methods of {option.name}"
                panels[title] = list(_method_rows(option.flag.methods(), every=in_full))
        if in_full:
            panels["Settings without an option, for --set and --config"] = [
                (_assignment(option), option.description)
                for option in options_of(self.settings)
                if not option.names
            ]
        general = panels["Settings"] = [
            ("--config PATH", "TOML or JSON file of settings; options on the command line win."),
            ("--set NAME=VALUE", "Any setting by its dotted name; may be repeated."),
            ("--help", "Show this message and exit."),
        ]
        if output_fields(self.settings):
            general.insert(0, ("--force", "Overwrite existing output."))
        if hidden := len(options_of(self.settings)) - len(options):
            general.append(("--help-all", f"Show {hidden} more settings."))
        for title, rows in panels.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def first_screen(command: type[Command]) -> list[Option]:
    """The options that ``--help`` shows: the common ones, or all if there are few."""
    options = [option for option in options_of(command) if option.names]
    return options if len(options) <= _FEW else [option for option in options if option.common]


def _method_rows(methods: Mapping[str, type[BaseModel]], *, every: bool) -> Iterator[tuple[str, str]]:
    """Each method with its settings and defaults; with ``every``, a row for each setting, too."""
    for name, kind in methods.items():
        settings = [
            option
            for option in options_of(kind)
            if len(option.choices) != 1  # no choice, no setting
        ]
        summary = " ".join(help_text(kind).split("\n\n")[0].replace("``", "`").split())
        defaults = "" if every else ", ".join(_assignment(option, method=True) for option in settings)
        yield dashed(name), summary + (f" [{defaults}]" if defaults else "")
        for option in settings if every else ():
            notes = "; ".join(option.notes)
            yield (
                f"  {_assignment(option, method=True)}",
                option.description + (f" [{notes}]" if notes else ""),
            )


_LONGEST_DEFAULT = 24


def _assignment(option: Option, *, method: bool = False) -> str:
    """A setting with its default, if there is a short one; of a method as :mod:`surefoot.spec` writes it."""
    name, default = ".".join(option.path), option.default_text
    if method:
        name, default = dashed(name), default.replace(",", "+") if option.repeated else default
    return f"{name}={default}" if default and len(default) <= _LONGEST_DEFAULT else name


_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""Matches a URL that was converted to a path, which removes a slash."""


def _refuse_outputs(paths: Iterable[Path], *, existing: bool) -> None:
    """Raise ``RunError`` for a URL, and with ``existing`` for a path that exists and that cannot be resumed.

    Unfinished work can be resumed: a file with a ``<file>.work`` directory, and a run directory, whose
    manifest is compared with the command's settings later. Devices and pipes may be written.
    """
    # the first of several processes has checked, and may already be writing
    existing = existing and int(os.environ.get("RANK", "0")) == 0
    for path in paths:
        if _URL.match(str(path)):
            raise RunError(f"{path}: outputs are local files; write one, then upload it")
        if not existing or path.with_name(f"{path.name}.work").is_dir():
            continue
        if path.is_dir() and any(path.iterdir()) and not (path / "manifest.json").exists():
            raise RunError(f"{path} is a directory with other files in it; name a new one, or add --force")
        if path.is_file():
            raise RunError(f"{path} exists; name another file, or add --force to replace it")


def _show_all_options(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta["all"] = True
        echo(context.get_help())
        context.exit()


def _parameter(number: int, option: Option) -> click.Parameter:
    name = f"value_{number}"
    if option.flag.argument:
        count = -1 if option.repeated else 1
        return click.Argument([name], required=False, nargs=count, metavar=option.usage)
    names = list(option.names)
    if option.kind is bool:
        return click.Option([name, f"{names[0]}/{option.negative}", *names[1:]], default=None)
    choices = option.choices
    return click.Option(
        [name, *names],
        multiple=option.repeated,
        shell_complete=lambda _ctx, _param, start: [value for value in choices if value.startswith(start)],
    )


def build(
    command: type[C],
    flags: Mapping[tuple[str, ...], Any],
    *,
    file: Path | None = None,
    assignments: Sequence[str] = (),
) -> C:
    """Settings from a file, assignments and options, of which the later ones win.

    Raises ``RunError``, which names option or setting, and ``click.UsageError`` for a missing one.
    """
    settings: dict[str, Any] = {}
    for key, value in (read_table(file) if file else {}).items():
        path = _path(command, key, table=isinstance(value, dict))
        _insert(settings, path, value, where=f"--config {file}: {key}")
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise RunError(f"--set {assignment}: write NAME=VALUE")
        first, *below = name.strip().split(".")
        path = _path(command, first, table=bool(below))
        _insert(settings, (*path, *below), _json_or_text(text), where=f"--set {name}")
    for path, value in flags.items():
        _insert(settings, path, value, where=path[-1])
    try:
        return command.model_validate(_with_defaults(command, None, settings), context=settings)
    except ValidationError as error:
        raise explained(error, command) from error


def explained(error: ValidationError, command: type[BaseModel]) -> Exception:
    """The first error of a validation, in one sentence that names the option."""
    options = options_of(command)
    first = error.errors(include_url=False)[0]
    path = tuple(part for part in first["loc"] if isinstance(part, str))
    of_tag = first["type"] == "union_tag_invalid"
    matches = (
        option
        for option in options
        if (option.path[:-1] if of_tag else option.path) == path[: len(option.path)]
    )
    name = next((option.name for option in matches), ".".join(path))
    if first["type"] == "missing":
        return click.UsageError(f"{name} is required", click.get_current_context(silent=True))
    if first["type"] in ("literal_error", "union_tag_invalid"):
        value = first["ctx"]["tag"] if of_tag else first["input"]
        expected = first["ctx"]["expected_tags" if of_tag else "expected"].replace("'", "")
        return RunError(f"{name} is {value!r}; choose {expected}")
    names = {option.path[-1]: option.name for option in reversed(options) if option.names}
    names |= {_key(name): name for name in names.values()}
    message = first["msg"].removeprefix("Value error, ")
    message = re.sub(r"'(\w+)'", lambda match: names.get(match[1], match[0]), message)
    return RunError(message if not name or "--" in message else f"{name}: {message}")


def read_table(path: Path) -> dict[str, Any]:
    """Read a TOML or JSON file of settings. Raises ``RunError``."""
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"--config {path}: {error}; give a TOML or JSON file") from error
    if not isinstance(table, dict):
        raise RunError(f"--config {path}: the file contains no table of settings")
    return table


def _path(command: type[BaseModel], key: str, *, table: bool) -> tuple[str, ...]:
    """Path of a name in ``--config`` or ``--set``: a field, an option, or a field of a nested class.

    Nested classes come first if the name holds a table.
    """
    key = key.replace("-", "_")
    if key in command.model_fields:
        return (key,)
    options = options_of(command)
    fields = [option.path[: option.path.index(key) + 1] for option in options if key in option.path]
    names = [option.path for option in options if option.names and _key(option.names[0]) == key]
    paths = [*fields, *names] if table else [*names, *fields]
    if not paths:
        raise RunError(unknown("setting", key, command.model_fields))
    return paths[0]


def _key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _insert(settings: dict[str, Any], path: Sequence[str], value: Any, *, where: str) -> None:
    for key in path[:-1]:
        if settings.get(key) is None:
            settings[key] = {}
        settings = settings[key]
        if not isinstance(settings, dict):
            raise RunError(f"{where}: {key!r} is not a table")
    last = path[-1]
    if isinstance(value, dict) and isinstance(settings.get(last), dict):
        for key, below in value.items():
            _insert(settings[last], (key,), below, where=where)
    else:
        settings[last] = value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _with_defaults(kind: Any, default: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` completed by those values of the instance ``default`` that differ from its class."""
    fields = {field.name: field for field in settings_fields(kind)}
    if strange := [name for name in settings if name not in fields]:
        raise RunError(unknown("setting", strange[0], fields))
    result = dict(settings)
    for name, field in fields.items():
        value = field.default if default is None else getattr(default, name)
        nested = is_settings(field.kind)
        if nested and (
            isinstance(settings.get(name), Mapping) or (name not in settings and value is REQUIRED)
        ):
            start = value if is_settings(type(value)) else None
            result[name] = _with_defaults(field.kind, start, settings.get(name, {}))
        elif name not in settings and default is not None and value != field.default:
            result[name] = value
    return result
