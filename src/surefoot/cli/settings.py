"""Commands made of settings: each setting is declared once, as a field of a frozen pydantic class.

The fields become the options of the command line, the tables of ``--config``, the names of ``--set``, the
settings in a run's manifest, and the pages on commands that ``make docs`` builds.

To write a command:

1. Derive a class from :class:`Command`. Its docstring is the help text: a first line that says what the
   command does, then what a user has to know, then an ``Example:`` in backticks.
2. Add one field for each setting: ``n: int = Field(default=8, ge=1, description="Traces per problem.")``.
   The field ``batch_size`` is the option ``--batch-size``. A ``bool`` is ``--x/--no-x``, a ``Literal`` a
   choice, a ``tuple`` an option that may be repeated. ``Annotated[..., Flag(...)]`` renames an option, adds
   a short name, or makes it the positional argument. Every command takes its main input by position.
3. Nest the settings class of what the command runs (``TrainingConfig``, a search method) instead of
   repeating its fields: ``training: TrainingConfig = TrainingConfig()``. Its fields become options in a
   panel, with their own bounds, descriptions (or docstrings) and defaults; ``Annotated[TrainingConfig,
   OptionGroup(...)]`` renames or omits some of them. Pydantic classes and data classes can be nested. An
   optional one (``adapter: Adapter | None = None``) is built when one of its options (``--adapter-rank``)
   is used.
4. Mark the options that most users need as ``common`` (in ``Flag`` or ``OptionGroup``). ``--help`` shows
   these, the required ones, and those with a short name; ``--help-all`` shows all.
5. Reject impossible combinations in a ``model_validator``, with the fields' names in quotes
   (``'head_epochs' needs ...``): the user reads ``--head-epochs needs ...``.
6. ``run`` does the work; ``self.resolved()`` goes into the run's manifest. Mark a field that changes no
   result as ``Flag(transient=True)``, so that a run can be resumed with another value, and an output file as
   ``Flag(output=True)``: the command then has ``--force`` and never overwrites without it. A command that
   writes other files overrides ``outputs``.
7. Add a line to the table in :mod:`surefoot.cli.commands`.

The modules of commands are imported before ``--help`` is shown, so import slow packages (torch) in ``run``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from inspect import cleandoc, get_annotations
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel, ByteSize, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from surefoot.cli.commands import COMMANDS
from surefoot.records import FrozenModel

T = TypeVar("T")

REQUIRED: Any = PydanticUndefined
"""Default of a required field."""

_EXAMPLE = re.compile(r"Example: `(.+?)`(?: \((.+?)\))?", re.S)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """How one field appears on the command line."""

    name: str | None = None
    """Long option; ``--`` and the field's name by default."""
    short: str | None = None
    argument: bool = False
    """A positional argument instead of an option."""
    common: bool = False
    """Shown by ``--help``; other options are shown by ``--help-all``."""
    omit: bool = False
    """No option: only ``--config`` and ``--set`` reach the field."""
    transient: bool = False
    """Changes no result, so it is not in the manifest."""
    comma: bool = False
    """A tuple is one word with commas, not a repeated option."""
    file: bool = False
    """A file to read: the manifest has its hash."""
    scorer: bool = False
    """Names what a report is about."""
    output: bool = False
    """A file or directory that the command writes; it is only overwritten with ``--force``."""
    directory: bool = False
    """The output is a directory."""
    metavar: str | None = None
    methods: Callable[[], Mapping[str, type[BaseModel]]] | None = None
    """The methods by name that a text ``NAME:setting=value,…`` (:mod:`surefoot.spec`) may name, with their
    settings classes; ``--help`` lists them."""


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """How the fields of a nested settings class appear on the command line.

    Fields of settings nested further down are written with dots.
    """

    title: str | None = None
    """Title of the panel; the field's name by default."""
    names: Mapping[str, str] | None = None
    """Options by field, where they differ from the field's name: ``--n``, or ``--n -n`` with a short one."""
    omit: tuple[str, ...] = ()
    """Fields without an option, with everything below them (``*`` = all); ``--config`` and ``--set`` still
    reach them."""
    only: tuple[str, ...] = ()
    """The fields that have an option, if not all; the others are as in ``omit``."""
    common: tuple[str, ...] = ()
    """Fields that ``--help`` shows; ``*`` = all."""
    transient: tuple[str, ...] = ()
    """Fields that change no result; ``*`` = all."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One setting of a command, at any depth."""

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
        """Name in error messages."""
        return self.names[0] if self.names else ".".join(self.path)

    @property
    def common(self) -> bool:
        """Whether ``--help`` shows it."""
        required = self.default is REQUIRED
        return required or self.flag.argument or self.flag.common or len(self.names) > 1

    @property
    def choices(self) -> tuple[str, ...]:
        """Values of a ``Literal``."""
        return tuple(map(str, get_args(self.kind))) if get_origin(self.kind) is Literal else ()

    @property
    def default_text(self) -> str:
        """The default as a user would write it; empty for none."""
        if self.default is REQUIRED:
            return "required"
        if self.default is None or self.default in ((), {}):
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
        """Names and value, as ``--help`` shows them."""
        if self.flag.argument:
            return self.flag.metavar or self.names[0] + ("..." if self.repeated else "")
        names = ", ".join(reversed(self.names))
        if self.kind is bool:
            return f"{names} / {self.negative}"
        plain = {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(self.kind, "TEXT")
        return f"{names} {self.flag.metavar or '|'.join(self.choices) or plain}"

    @property
    def notes(self) -> list[str]:
        """Bounds, and whether it may be repeated."""
        repeated = "may be repeated" if self.repeated and not self.flag.argument else ""
        return [note for note in (self.bounds, repeated) if note]


class Command(BaseModel):
    """Settings of one command, and the work it does with them."""

    # building validators for some sixty commands of which one runs would be slow
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)

    def run(self) -> None:
        """Run the command. Raises an error of :mod:`surefoot.errors`."""
        raise NotImplementedError

    @classmethod
    def path(cls) -> str:
        """The words that call it, such as ``train prm``."""
        target = f"{cls.__module__.removeprefix('surefoot.cli.')}:{cls.__name__}"
        return next((path for path, (name, _) in COMMANDS.items() if name == target), cls.__name__)

    def outputs(self) -> list[Path]:
        """Files and directories that the command will write, without standard output (``-``)."""
        values = (getattr(self, name) for name in output_fields(type(self)))
        return [Path(value) for value in values if value not in (None, "-")]

    def resolved(self) -> dict[str, Any]:
        """All settings that a result depends on, for the manifest of a run."""
        settings = self.model_dump(mode="json")
        for option in options_of(type(self)):
            *parents, field = option.path
            table = settings
            for key in parents:
                table = table.get(key) or {}
            if option.flag.transient:
                table.pop(field, None)
        return settings


def changed_options(command: Command) -> Iterator[tuple[Option, Any]]:
    """The settings of ``command`` that are not the default, with their values."""
    for option in options_of(type(command)):
        value: Any = command
        for name in option.path:
            value = getattr(value, name, None)
        if value not in (None, (), option.default):
            yield option, value


class MethodSettings(FrozenModel):
    """Settings of what an option of a command names (``mc:rollouts=8``), and the fields that it uses."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Fields of the command that must be given."""
    takes: ClassVar[tuple[str, ...]] = ()
    """Other fields that it reads, such as ``seed`` or ``sampling.max_tokens``; the rest is refused."""

    def uses(self, path: tuple[str, ...]) -> bool:
        """Whether it uses the setting of the command at ``path``."""
        return any(".".join(path[:depth]) in self.needs + self.takes for depth in range(1, len(path) + 1))

    def check_options(self, command: Command, name: str, shared: tuple[str, ...]) -> None:
        """Refuse options that it does not use; all methods use the options of the fields ``shared``.

        Raises ``click.UsageError`` for a missing option, and ``ValueError``, which lists those that it uses.
        """
        options = [option for option in options_of(type(command)) if option.path[0] not in shared]
        changed = [option for option, _ in changed_options(command) if option in options]
        for option in options:
            if option.path[0] in self.needs and option.path[0] not in [other.path[0] for other in changed]:
                raise click.UsageError(f"{option.name} is required by {name}")
        for option in changed:
            if not self.uses(option.path):
                used = [other.name for other in options if other.names and self.uses(other.path)]
                raise ValueError(f"{name} does not use {option.name}; it uses {', '.join(used)}")


def command_line(command: Command) -> list[str]:
    """The words that run ``command``: its name, and every option that is not the default."""
    words = ["surefoot", *command.path().split()]
    for option, value in changed_options(command):
        if not option.names:
            continue
        if option.kind is bool:
            words.append(option.name if value else option.negative)
            continue
        values = value if option.repeated else [value]
        texts = [",".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in values]
        words += texts if option.flag.argument else [word for text in texts for word in (option.name, text)]
    return words


def help_text(command: type[BaseModel]) -> str:
    """The docstring without its examples."""
    return re.sub(r"\n{3,}", "\n\n", _EXAMPLE.sub("", cleandoc(command.__doc__ or ""))).strip()


def examples(command: type[Command]) -> list[str]:
    """Command lines of the docstring."""
    return [" ".join(match[1].split()) for match in _EXAMPLE.finditer(cleandoc(command.__doc__ or ""))]


@cache
def output_fields(command: type[Command]) -> tuple[str, ...]:
    """Fields that name what the command writes. With any of them, the command has ``--force``."""
    return tuple(option.path[0] for option in options_of(command) if option.flag.output)


@cache
def options_of(kind: type[BaseModel]) -> tuple[Option, ...]:
    """Every setting of a class and of the classes nested in it, in order."""
    return tuple(_options(kind, None, (), OptionGroup()))


_LESS_MEMORY = {
    "microbatch_tokens": "a smaller {}",
    "gradient_checkpointing": "{}",
    "workers": "fewer {}",
    "remember": "a smaller {}",
    "batch_size": "a smaller {}",
    "batch_tokens": "a smaller {}",
}
"""Settings that can reduce memory, with the advice for each."""


def saving_memory(command: type[Command]) -> list[str]:
    """Options that may reduce memory and change no result, so that a run can resume with them."""
    return [
        _LESS_MEMORY[option.path[-1]].format(option.name if option.names else f"--set {option.name}")
        for option in options_of(command)
        if option.flag.transient and option.path[-1] in _LESS_MEMORY
    ]


@dataclass(frozen=True)
class SettingsField:
    """One field of a settings class."""

    name: str
    kind: Any
    """The type without ``None`` and annotations."""
    optional: bool
    metadata: tuple[Any, ...]
    default: Any
    description: str
    tag: Any
    """The field that tells the classes of a union apart."""

    def last(self, kind: type[Any]) -> Any:
        """The outermost annotation of a kind, if there is one."""
        return next((data for data in reversed(self.metadata) if isinstance(data, kind)), None)


def is_settings(kind: Any) -> bool:
    """Whether a type is a settings class: a pydantic class or a data class."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


@cache
def settings_fields(kind: Any) -> tuple[SettingsField, ...]:
    """The fields of a settings class."""
    if issubclass(kind, BaseModel):
        infos = kind.model_fields
    else:
        hints = get_type_hints(kind, include_extras=True)
        infos = {
            field.name: FieldInfo.from_annotated_attribute(hints[field.name], field) for field in fields(kind)
        }
    return tuple(_field(kind, name, info) for name, info in infos.items())


def _field(kind: type, name: str, info: FieldInfo) -> SettingsField:
    core, metadata, description = info.annotation, info.metadata, info.description
    parts = [part for part in get_args(core) if part is not NoneType]
    optional = get_origin(core) in (Union, UnionType) and NoneType in get_args(core)
    if optional:
        union: Any = Union[tuple(parts)]  # noqa: UP007
        inner = FieldInfo.from_annotation(union)
        core, metadata = inner.annotation, [*inner.metadata, *metadata]
        description = description or inner.description
    default = info.get_default(call_default_factory=True, validated_data={})
    text = _docstring(kind, name, description or "")
    return SettingsField(name, core, optional, tuple(metadata), default, text, info.discriminator)


def _docstring(kind: type, name: str, description: str) -> str:
    """The docstring below a field, in ``kind`` or in a class above it; before those above its description."""
    for cls in kind.__mro__:
        if name in get_annotations(cls):
            text = _docstrings(cls.__module__).get((cls.__qualname__, name)) or description
            if text:
                return text.replace("``", "`")
    return description


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """Docstrings of a module's fields by class and field; data classes keep none at run time."""
    path = getattr(sys.modules[module], "__file__", None)
    if path is None or not path.endswith(".py"):
        return {}
    return {
        (node.name, field.target.id): cleandoc(below.value.value)
        for node in ast.parse(Path(path).read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        for field, below in pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _options(
    kind: Any, default: Any, path: tuple[str, ...], group: OptionGroup, *, prefix: str | None = None
) -> Iterator[Option]:
    """Settings of ``kind``; the instance ``default``, where there is one, has their defaults.

    ``prefix`` comes before the names of options below an optional class.
    """
    for field in settings_fields(kind):
        field_path = (*path, field.name)
        value = field.default if default is None else getattr(default, field.name)
        if not is_settings(field.kind):
            yield _option(field, value, field_path, group, prefix)
            continue
        start = value if is_settings(type(value)) else None
        below = f"{prefix or ''}{field.name}-" if field.optional else prefix
        title = field.name.replace("_", " ").capitalize()
        if path:
            inner = replace(group, title=f"{group.title}: {title.lower()}")
        else:
            inner = field.last(OptionGroup) or OptionGroup()
            inner = replace(inner, title=inner.title or title)
        first, *remaining = _options(field.kind, start, field_path, inner, prefix=below)
        if field.optional and start is None:  # its first option describes the whole class, too
            text = f"{field.description} {first.description}"
            first = replace(first, default=None, description=" ".join(text.split()))
        yield from (first, *remaining)


def _option(
    field: SettingsField, value: Any, path: tuple[str, ...], group: OptionGroup, prefix: str | None
) -> Option:
    below = ".".join(path[1:])
    flag = field.last(Flag) or Flag()
    flag = replace(
        flag,
        transient=flag.transient or "*" in group.transient or below in group.transient,
        common=flag.common or "*" in group.common or below in group.common,
    )
    kind, repeated = _word(field.kind)
    if isinstance(field.tag, str):  # one of several classes: the option names it
        path, kind, value = (*path, field.tag), str, getattr(value, field.tag, value)
        kinds = {member.model_fields[field.tag].default: member for member in get_args(field.kind)}
        flag = replace(flag, methods=lambda: kinds, metavar=flag.metavar or "NAME[:SETTING=VALUE,…]")
    names: tuple[str, ...] = ()
    omitted = flag.omit or any(f"{below}.".startswith(f"{name}.") or name == "*" for name in group.omit)
    chosen = not group.only or below in group.only
    if chosen and not omitted and kind is not None:
        if flag.argument:
            names = (flag.metavar or field.name.upper(),)
        elif below in (group.names or {}):
            names = tuple((group.names or {})[below].split())
        else:
            long = flag.name or f"--{(prefix or '') + field.name}".replace("_", "-")
            names = (long, flag.short) if flag.short else (long,)
    return Option(
        path=path,
        names=names,
        kind=str if flag.comma else kind,
        repeated=repeated and not flag.comma,
        default=None if prefix and value is REQUIRED else value,
        description=" ".join(field.description.split()),
        bounds=", ".join(
            f"{sign} {getattr(data, name):g}"
            for name, sign in _BOUNDS.items()
            for data in field.metadata
            if hasattr(data, name)
        ),
        panel=group.title,
        flag=flag,
    )


_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _word(kind: Any) -> tuple[Any, bool]:
    """Type of one word on the command line (``None`` if there is none), and whether it may be repeated."""
    if get_origin(kind) in (tuple, list):
        return _word(FieldInfo.from_annotation(get_args(kind)[0]).annotation)[0], True
    if get_origin(kind) is Literal or kind in (str, int, float, bool, Path):
        return kind, False
    union = get_origin(kind) in (Union, UnionType) and all(_word(part)[0] for part in get_args(kind))
    if union or kind is ByteSize:
        return str, False
    return None, False
