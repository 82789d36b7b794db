"""Commands made of settings: each setting is declared once, as a field of a frozen pydantic class.

From the fields come the options of the command line with their help panels, the tables of ``--config``,
the names of ``--set``, the settings in a run's manifest, and ``docs/reference/commands.md``.

To write a command:

1. Derive a class from :class:`Command`. Its docstring is the help text: a first line that says what the
   command does, then what a user has to know, then an ``Example:`` in backticks.
2. Give it one field for each setting: ``n: int = Field(default=8, ge=1, description="Traces per problem.")``.
   The field ``batch_size`` is the option ``--batch-size``. A ``bool`` is ``--x/--no-x``, a ``Literal`` a
   choice, a ``tuple`` an option that may be repeated. ``Annotated[..., Flag(...)]`` gives another or a short
   name, or makes the field a positional argument.
3. Settings that another package declares (``TrainingConfig``, a search method) are nested, not declared
   again: ``training: TrainingConfig = TrainingConfig()``. Their fields become options in a panel of their
   own, with the bounds, descriptions (or docstrings) and defaults that they have there;
   ``Annotated[TrainingConfig, OptionGroup(...)]`` renames or omits some. Pydantic classes and data classes
   can be nested; an optional one (``adapter: Adapter | None = None``) is built when one of its options
   (``--adapter-rank``) is used.
4. Refuse impossible combinations in a ``model_validator``, with the fields' names in quotes
   (``'head_epochs' needs ...``): the user reads ``--head-epochs needs ...``.
5. ``run`` does the work; ``self.resolved()`` goes into the run's manifest. Mark a field that changes no
   result as ``Flag(transient=True)``, so that a run can be resumed with another value, and one that names
   what is written as ``Flag(output=True)``: the command then has ``--force``, without which nothing is
   written over. A command that writes other files than those overrides ``outputs``.
6. Add a line to the table in :mod:`surefoot.cli.commands` and a heading to ``docs/reference/commands.md``;
   then run ``python -m surefoot.cli.reference``.

Imports that a class needs for its fields are made on load, so they must be quick; ``run`` imports the rest.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from surefoot.cli.endings import plain_endings
from surefoot.cli.outputs import refuse_existing, refuse_urls
from surefoot.errors import RunError

C = TypeVar("C", bound="Command")

REQUIRED: Any = PydanticUndefined
"""Default of a field that has none."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How one field shows on the command line."""

    name: str | None = None
    """Long option; ``--`` and the field's name unless given."""
    short: str | None = None
    argument: bool = False
    """A positional argument in place of an option."""
    transient: bool = False
    """Changes no result, so the manifest does not hold it."""
    comma: bool = False
    """A tuple is one word with commas, not an option that is repeated."""
    output: bool = False
    """A file or directory that the command writes; it is not written over without ``--force``."""
    metavar: str | None = None


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """How the fields of a nested settings class show on the command line."""

    title: str | None = None
    """Of the help panel; the field's name unless given."""
    names: Mapping[str, str] | None = None
    """Options by field, dotted below nested settings, where they are not the field's own name: ``--n``, or
    ``--n -n`` with a short one."""
    omit: tuple[str, ...] = ()
    """Fields without an option, with all below them; ``--config`` and ``--set`` still reach them."""
    transient: tuple[str, ...] = ()
    """Fields that change no result; ``*`` = all."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting of a command, wherever it is nested."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    """Long and short option; the shown name of an argument; empty without an option."""
    kind: Any
    repeated: bool
    default: Any
    description: str
    bounds: str
    panel: str | None
    flag: Flag

    @property
    def name(self) -> str:
        """What an error calls it."""
        return self.names[0] if self.names else ".".join(self.path)

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of a ``Literal``."""
        return tuple(map(str, get_args(self.kind))) if get_origin(self.kind) is Literal else ()

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty for none."""
        if self.default is REQUIRED:
            return "required"
        if self.default is None or self.default == ():
            return ""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, tuple | list):
            return ",".join(map(str, self.default))
        return (
            f"{self.default:g}" if isinstance(self.default, float) else str(self.default).replace("\n", r"\n")
        )

    @property
    def negative(self) -> str:
        """The option that turns an on/off setting off."""
        return f"--no-{self.names[0].removeprefix('--')}"

    @property
    def usage(self) -> str:
        """How the option is written, as ``--help`` shows it."""
        if self.flag.argument:
            return self.metavar if self.flag.metavar else self.names[0] + ("..." if self.repeated else "")
        names = ", ".join(reversed(self.names))
        return f"{names} / {self.negative}" if self.kind is bool else f"{names} {self.metavar}"

    @property
    def help(self) -> str:
        """The description with default and bounds."""
        default = self.default_text if self.default is REQUIRED else f"default: {self.default_text}"
        repeated = "may be repeated" if self.repeated and not self.flag.argument else ""
        notes = "; ".join(note for note in (default, self.bounds, repeated) if note not in ("", "default: "))
        return f"{self.description} [{notes}]" if notes else self.description

    @property
    def metavar(self) -> str:
        """What stands for the value."""
        if self.flag.metavar:
            return self.flag.metavar
        if self.choices:
            return "|".join(self.choices)
        simple = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
        return simple.get(self.kind, "TEXT")


class Command(BaseModel):
    """Settings of one command, and what it does with them."""

    # of some fifty commands one runs, so the others need no validator
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    def run(self) -> None:
        """Do it. Raises an error of :mod:`surefoot.errors`."""
        raise NotImplementedError

    def outputs(self) -> list[Path]:
        """Files and directories that the command will write; ``-`` is none."""
        values = (getattr(self, name) for name in _outputs(type(self)))
        return [Path(value) for value in values if value not in (None, "-")]

    def resolved(self) -> dict[str, Any]:
        """All settings that a result depends on, for the manifest of a run."""
        found = self.model_dump(mode="json")
        for option in options_of(type(self)):
            *above, last = option.path
            table = found
            for key in above:
                table = table.get(key) or {}
            if option.flag.transient:
                table.pop(last, None)
        return found


_LESS_MEMORY = {
    "microbatch_tokens": "a smaller {}",
    "gradient_checkpointing": "{}",
    "workers": "fewer {}",
    "remember": "a smaller {}",
    "batch_size": "a smaller {}",
    "batch_tokens": "a smaller {}",
}
"""How settings need less memory, if they change no result."""


def saving_memory(command: type[Command]) -> list[str]:
    """Options of ``command`` that may need less memory and change no result: a run can resume with them."""
    return [
        _LESS_MEMORY[option.path[-1]].format(option.name)
        for option in options_of(command)
        if option.names and option.flag.transient and option.path[-1] in _LESS_MEMORY
    ]


class SettingsCommand(click.Command):
    """A command made of a settings class; its options are the fields."""

    def __init__(self, name: str, settings: type[Command]) -> None:
        self.settings = settings
        self.options = [option for option in options_of(settings) if option.names]
        names = [name for option in self.options for name in option.names]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"{settings.__name__}: two options are named {min(repeated)}")
        super().__init__(
            name, params=self._parameters(), callback=self._run, help=cleandoc(settings.__doc__ or "")
        )

    def _parameters(self) -> list[click.Parameter]:
        return [
            *(_parameter(number, option) for number, option in enumerate(self.options)),
            *([click.Option(["--force"], is_flag=True)] if has_outputs(self.settings) else []),
            click.Option(["--config"]),
            click.Option(["--set", "assignments"], multiple=True),
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
        refuse_urls(settings.outputs())
        if not values.get("force"):
            refuse_existing(settings.outputs())
        with plain_endings(settings.outputs(), saving_memory(self.settings)):
            settings.run()

    def format_options(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for option in self.options:
            title = "Arguments" if option.flag.argument else option.panel or "Options"
            panels.setdefault(title, []).append((option.usage, option.help))
        settings = panels["Settings"] = []
        if has_outputs(self.settings):
            settings.append(("--force", "Overwrite existing output."))
        settings.append(
            ("--config PATH", "TOML or JSON file of settings; an option on the command line wins.")
        )
        settings.append(
            ("--set NAME=VALUE", "Any setting by its name, dotted below tables; may be repeated.")
        )
        settings.append(("--help", "Show this message and exit."))
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def build(
    command: type[C],
    flags: Mapping[tuple[str, ...], Any],
    *,
    file: Path | None = None,
    assignments: Sequence[str] = (),
) -> C:
    """Settings from a file, assignments and options; the later ones win, and defaults fill the rest.

    Raises ``RunError``, which names option or setting, and ``click.UsageError`` for one that is missing.
    """
    tree: dict[str, Any] = {}
    for key, value in (read_table(file) if file else {}).items():
        _put(tree, _place(command, key, table=isinstance(value, dict)), value, said=f"--config {file}: {key}")
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            raise RunError(f"--set {assignment}: write NAME=VALUE")
        first, *rest = name.strip().split(".")
        _put(tree, (*_place(command, first, table=bool(rest)), *rest), _value(text), said=f"--set {name}")
    for path, given in flags.items():
        _put(tree, path, given, said=path[-1])
    try:
        return command.model_validate(_filled(command, None, tree))
    except ValidationError as error:
        raise explained(error, command) from error


def explained(error: ValidationError, command: type[BaseModel]) -> Exception:
    """What pydantic refused, in one sentence that names the option."""
    options = options_of(command)
    first = error.errors(include_url=False)[0]
    place = tuple(part for part in first["loc"] if isinstance(part, str))
    of_tag = first["type"] == "union_tag_invalid"
    option = next(
        (one for one in options if (one.path[:-1] if of_tag else one.path) == place[: len(one.path)]), None
    )
    name = option.name if option else ".".join(place)
    if first["type"] == "missing":
        return click.UsageError(f"{name} is required", click.get_current_context(silent=True))
    if first["type"] == "literal_error":
        expected = first["ctx"]["expected"].replace("'", "")
        return RunError(f"{name} is {first['input']!r}; choose {expected}")
    if of_tag:
        expected = first["ctx"]["expected_tags"].replace("'", "")
        return RunError(f"{name} is {first['ctx']['tag']!r}; choose {expected}")
    known = {option.path[-1]: option.name for option in reversed(options) if option.names}
    known |= {name.lstrip("-").replace("-", "_"): name for name in known.values()}
    message = re.sub(
        r"'(\w+)'", lambda found: known.get(found[1], found[0]), first["msg"].removeprefix("Value error, ")
    )
    return RunError(message if not name or "--" in message else f"{name}: {message}")


@cache
def _outputs(command: type[Command]) -> tuple[str, ...]:
    """Fields that name what the command writes."""
    return tuple(option.path[0] for option in options_of(command) if option.flag.output)


def has_outputs(command: type[Command]) -> bool:
    """Whether the command writes files, and so has ``--force``."""
    return bool(_outputs(command))


@cache
def options_of(kind: type[BaseModel]) -> tuple[Option, ...]:
    """Every setting of a class and of those nested in it, in their order."""
    return tuple(_options(kind, None, (), OptionGroup()))


def read_table(path: Path) -> dict[str, Any]:
    """A TOML or JSON file, by its ending. Raises ``RunError``."""
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"--config {path}: {error}; give a TOML or JSON file") from error
    if not isinstance(table, dict):
        raise RunError(f"--config {path}: it holds no table of settings")
    return table


def _parameter(number: int, option: Option) -> click.Parameter:
    name = f"value_{number}"
    if option.flag.argument:
        count = -1 if option.repeated else 1
        return click.Argument([name], required=False, nargs=count, metavar=option.usage)
    names = list(option.names)
    if option.kind is bool:
        return click.Option([name, "/".join((names[0], option.negative)), *names[1:]], default=None)
    choices = option.choices
    return click.Option(
        [name, *names],
        multiple=option.repeated,
        shell_complete=lambda _context, _parameter, start: [
            value for value in choices if value.startswith(start)
        ],
    )


@dataclass(frozen=True)
class _Field:
    name: str
    kind: Any
    """The type without ``None`` and annotations."""
    optional: bool
    metadata: tuple[Any, ...]
    default: Any
    description: str

    @property
    def nested(self) -> bool:
        return _is_settings(self.kind)


def _fields(kind: Any) -> Iterator[_Field]:
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            default = info.get_default(call_default_factory=True, validated_data={})
            yield _field(kind, name, info.annotation, (info,), default)
        return
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = field.default if field.default is not MISSING else REQUIRED
        if field.default_factory is not MISSING:
            default = field.default_factory()
        yield _field(kind, field.name, hints[field.name], (), default)


def _field(kind: type, name: str, annotation: Any, infos: tuple[FieldInfo, ...], default: Any) -> _Field:
    core, optional, metadata = _core(annotation)
    infos = (*infos, *(one for one in metadata if isinstance(one, FieldInfo)))
    every = (*infos, *metadata, *(bound for info in infos for bound in info.metadata))
    described = next((info.description for info in infos if info.description), None)
    return _Field(name, core, optional, every, default, described or _described(kind, name))


def _described(kind: type, name: str) -> str:
    """The docstring below a field, in ``kind`` or in a class above it."""
    texts = (_docstrings(one.__module__).get((one.__qualname__, name)) for one in kind.__mro__)
    return next(filter(None, texts), "").replace("``", "`")


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Docstring by class and field."""
    path = getattr(sys.modules[module], "__file__", None)
    if path is None or not path.endswith(".py"):
        return {}
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(Path(path).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for field, below in pairwise(node.body):
                match field, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        found[node.name, name] = cleandoc(text)
    return found


def _core(annotation: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """The type without ``None`` and annotations, whether ``None`` was there, and the annotations."""
    metadata: tuple[Any, ...] = ()
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata = (*more, *metadata)
        elif get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
            parts = [part for part in get_args(annotation) if part is not NoneType]
            annotation, optional = Union[tuple(parts)], True  # noqa: UP007
        else:
            return annotation, optional, metadata


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


def _options(
    kind: Any, default: Any, path: tuple[str, ...], group: OptionGroup, *, prefix: str | None = None
) -> Iterator[Option]:
    """Settings of ``kind``; values of the instance ``default``, where there is one, are their defaults.

    ``prefix`` comes before the names of options below an optional class.
    """
    for field in _fields(kind):
        here = (*path, field.name)
        value = field.default if default is None else getattr(default, field.name)
        below = ".".join(here[1:])
        if field.nested:
            own = next((one for one in field.metadata if isinstance(one, OptionGroup)), None)
            inner = group if path else own
            title = field.name.replace("_", " ").capitalize()
            inner = inner or OptionGroup()
            if path:
                inner = replace(inner, title=f"{group.title}: {title.lower()}")
            elif not inner.title:
                inner = replace(inner, title=title)
            start = value if _is_settings(type(value)) else None
            before = f"{prefix or ''}{field.name}-" if field.optional else prefix
            first, *others = _options(field.kind, start, here, inner, prefix=before)
            if field.optional and start is None:  # the option that asks for it says what it is
                text = f"{field.description} {first.description}"
                first = replace(first, default=None, description=" ".join(text.split()))
            yield from (first, *others)
            continue
        flag = next((one for one in reversed(field.metadata) if isinstance(one, Flag)), Flag())
        if "*" in group.transient or below in group.transient:
            flag = replace(flag, transient=True)
        kind_of, repeated = _item(field.kind)
        infos = (one for one in field.metadata if isinstance(one, FieldInfo))
        tag = next((one.discriminator for one in infos if isinstance(one.discriminator, str)), None)
        if tag:  # one of several classes: the option names it
            here, kind_of, value = (*here, tag), str, getattr(value, tag, value)
        omitted = any(below == one or below.startswith(f"{one}.") for one in group.omit)
        yield Option(
            path=here,
            names=() if omitted else _names((prefix or "") + field.name, below, flag, group, kind_of),
            kind=str if flag.comma else kind_of,
            repeated=repeated and not flag.comma,
            default=None if prefix and value is REQUIRED else value,
            description=" ".join(field.description.split()),
            bounds=_bounds(field.metadata),
            panel=group.title,
            flag=flag,
        )


def _names(field: str, below: str, flag: Flag, group: OptionGroup, kind: Any) -> tuple[str, ...]:
    if kind is None:
        return ()
    if flag.argument:
        return (flag.metavar or field.upper(),)
    if below in (group.names or {}):
        return tuple((group.names or {})[below].split())
    long = flag.name or f"--{field.replace('_', '-')}"
    return (long, flag.short) if flag.short else (long,)


def _item(kind: Any) -> tuple[Any, bool]:
    """What one word on the command line is, ``None`` if no word can be it, and whether it may be repeated."""
    if get_origin(kind) in (tuple, list):
        return _item(_core(get_args(kind)[0])[0])[0], True
    if get_origin(kind) is Literal or kind in (str, int, float, bool, Path):
        return kind, False
    if get_origin(kind) in (Union, UnionType) and all(_item(part)[0] for part in get_args(kind)):
        return str, False
    return None, False


_BOUNDS = {"ge": "≥ ", "gt": "> ", "le": "≤ ", "lt": "< "}


def _bounds(metadata: Sequence[Any]) -> str:
    found = {name: getattr(one, name) for one in metadata for name in _BOUNDS if hasattr(one, name)}
    return ", ".join(
        f"{sign}{found[name]:g}" for name, sign in _BOUNDS.items() if found.get(name) is not None
    )


def _place(command: type[BaseModel], key: str, *, table: bool) -> tuple[str, ...]:
    """Where a name of ``--config`` or ``--set`` is: a field, an option's name, or (first, if what it names is
    a table) a field of a group."""
    key = key.replace("-", "_")
    if key in command.model_fields:
        return (key,)
    options = options_of(command)
    fields = [option.path[: option.path.index(key) + 1] for option in options if key in option.path]
    names = [option.path for option in options if option.names and _key(option.names[0]) == key]
    places = [*fields, *names] if table else [*names, *fields]
    if not places:
        raise RunError(f"there is no setting {key!r}; choose {', '.join(command.model_fields)}")
    return places[0]


def _key(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _put(tree: dict[str, Any], path: Sequence[str], value: Any, *, said: str) -> None:
    for key in path[:-1]:
        if tree.get(key) is None:
            tree[key] = {}
        tree = tree[key]
        if not isinstance(tree, dict):
            raise RunError(f"{said}: {key!r} is no table")
    last = path[-1]
    if isinstance(value, dict) and isinstance(tree.get(last), dict):
        for key, below in value.items():
            _put(tree[last], (key,), below, said=said)
    else:
        tree[last] = value


def _value(text: str) -> Any:
    """JSON, or the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _filled(kind: Any, default: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """``given``, and what the instance ``default`` has other than its class, in nested settings too."""
    known = {field.name: field for field in _fields(kind)}
    if unknown := [name for name in given if name not in known]:
        raise RunError(f"there is no setting {unknown[0]!r}; choose {', '.join(known)}")
    result: dict[str, Any] = {}
    for name, field in known.items():
        value = field.default if default is None else getattr(default, name)
        start = value if _is_settings(type(value)) else None
        if field.nested and isinstance(given.get(name), Mapping):
            result[name] = _filled(field.kind, start, given[name])
        elif name in given:
            result[name] = given[name]
        elif field.nested and value is REQUIRED:
            result[name] = _filled(field.kind, None, {})
        elif default is not None and value != field.default:
            result[name] = value
    return result
