"""Pages of the reference that ``tools/docs.py`` builds from the code: commands and options; the API."""

from __future__ import annotations

import html
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS, GROUPS
from surefoot.cli.parser import first_screen
from surefoot.cli.settings import REQUIRED, Command, Option, examples, help_text, options_of, output_fields

SOURCE = Path(__file__).parents[1] / "src" / "surefoot"
_SENTENCE_END = re.compile(r"(?<=\.)(?<!et al\.)(?<!e\.g\.)(?<!vs\.) (?=[A-Z`(\[])")
_TABLE = "| option | default | meaning |\n|---|---|---|\n"


def command_pages() -> dict[str, str]:
    """The text of each page on commands by its name: one for each first word, and ``index``."""
    sections: dict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys(_with_groups()):
        text = _command(load_settings(path)) if path in COMMANDS else GROUPS[path]
        level = "##" if " " in path else "#"
        sections[path.split(" ")[0]].append(f"{level} surefoot {path}\n\n{text}\n")
    pages = {page: "\n".join(parts) for page, parts in sections.items()}
    rows = [
        f"| [`{path}`]({path.split(' ')[0]}.md#surefoot-{path.replace(' ', '-')}) | {text} |\n"
        for path, (_, text) in COMMANDS.items()
    ]
    index = "# Commands\n\n| command | |\n|---|---|\n" + "".join(rows)
    return pages | {"index": index + _contents_of(pages)}


def _with_groups() -> Iterable[str]:
    """Paths of commands, each group before its first command."""
    for path in COMMANDS:
        words = path.split(" ")
        yield from (" ".join(words[:end]) for end in range(1, len(words) + 1))


def _command(command: type[Command]) -> str:
    """The text on one command: description, examples, methods, common options, all others."""
    blocks = [help_text(command)]
    if lines := examples(command):
        blocks.append("\n".join(["```bash", *lines, "```"]))
    first, others = first_screen(command), defaultdict[str, list[Option]](list)
    methods: list[str] = []
    for option in (option for option in options_of(command) if option.names):
        if option not in first:
            others[option.panel or "General"].append(option)
        if option.flag.methods:
            methods += [_method(name, kind) for name, kind in option.flag.methods().items()]
    force = "| `--force` | | Overwrite existing output. |\n" * bool(output_fields(command))
    first.sort(key=lambda option: not option.flag.argument)
    blocks += [_TABLE + "".join(map(_row, first)) + force, *methods]
    blocks += [f"**{panel}**\n\n{_TABLE}{''.join(map(_row, options))}" for panel, options in others.items()]
    return "\n\n".join(block.rstrip("\n") for block in blocks)


def _method(name: str, kind: type) -> str:
    """A method and its settings."""
    rows = [_row(option, dashes="") for option in options_of(kind) if option.path != ("name",)]
    summary = " ".join(help_text(kind).split("\n\n")[0].replace("``", "`").split())
    return f"**`{name.replace('_', '-')}`**: {summary}" + ("\n\n" + _TABLE + "".join(rows) if rows else "")


def _row(option: Option, dashes: str = "--") -> str:
    """An option as a row of a table."""
    names = option.names if dashes else (".".join(option.path).replace("_", "-"),)
    shown = ", ".join(f"`{name}`" for name in names)
    if dashes and option.kind is bool and not option.flag.argument:
        shown += f", `{option.negative}`"
    notes = [f"`{'`, `'.join(option.choices)}`"] if option.choices else []
    notes += option.notes
    text = option.default_text
    default = text if option.default is REQUIRED or not text else f"`{text}`"
    meaning = option.description + (f" ({'; '.join(notes)})" if notes else "")
    return f"| {shown} | {default} | {meaning.replace('|', chr(92) + '|')} |\n"


def api_pages() -> dict[str, str]:
    """The text of each page on a package, or a public module outside packages, by its name; and ``index``."""
    packages = [
        ".".join(stub.parent.relative_to(SOURCE.parent).parts) for stub in SOURCE.rglob("__init__.pyi")
    ]
    names = sorted([*packages, *(f"surefoot.{path.stem}" for path in SOURCE.glob("[a-z]*.py"))])
    pages, rows = {}, []
    for name in names:
        module = importlib.import_module(name)
        if parts := _parts(module, names):
            text = "".join(f"## {title}\n\n" + "\n".join(sorted(part)) + "\n\n" for title, part in parts)
            pages[name] = f"# {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n\n{text}"
            rows.append(f"| [`{name}`]({name}.md) | {_summary(module)} |\n")
    index = "# Python API\n\n| package | |\n|---|---|\n" + "".join(rows)
    return pages | {"index": index + _contents_of(pages)}


def _contents_of(pages: Iterable[str]) -> str:
    """The entries of a folder in the sidebar."""
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


def _parts(module: ModuleType, pages: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Functions, classes and values of a module; those that another page describes are links to it."""
    parts: dict[str, list[str]] = {"Functions": [], "Classes": [], "Values": []}
    for name, value in _members(module):
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            parts["Values"].append(f"- `{name}`: {_contents(value)}")
            continue
        kind = "class" if inspect.isclass(value) else "function"
        homes = [page for page in pages if f"{value.__module__}.".startswith(f"{page}.")]
        home = max(homes, key=len, default=module.__name__)
        entry = f"{{py:obj}}`{name} <{home}.{name}>` {_summary(value)}\n"
        if module.__name__ != "surefoot":
            entry = _entry(f"{module.__name__}.{name}", value, kind)
        parts["Classes" if kind == "class" else "Functions"].append(entry)
    return [(title, part) for title, part in parts.items() if part]


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Public names and their values; the error, for one that needs a package that is not installed."""
    for name in getattr(module, "__all__", None) or vars(module):
        try:
            value = getattr(module, name)
        except ModuleNotFoundError as missing:
            value = missing
        listed = hasattr(module, "__all__") or getattr(value, "__module__", None) == module.__name__
        if listed and not name.startswith("_"):
            yield name, value


def _entry(path: str, value: object, kind: str) -> str:
    """A line with the name and the summary, which opens to the whole description."""
    members = "   :members:\n" if kind == "class" else ""
    line = f"<code>{path.rpartition('.')[2]}</code> {_summary(value)}"
    return (
        f'<details class="entry"><summary>{line}</summary>\n\n'
        f"```{{eval-rst}}\n.. auto{kind}:: {path}\n{members}```\n\n</details>\n"
    )


def _contents(value: object) -> str:
    """What a value holds, by its names if it is a table or a list of them."""
    if isinstance(value, dict | list | tuple | set | frozenset) and all(
        isinstance(key, str) for key in value
    ):
        return ", ".join(f"`{key}`" for key in value)
    if isinstance(value, ModuleType):
        return f"the module `{value.__name__}`"
    if isinstance(value, ModuleNotFoundError):
        return f"needs the package `{value.name}`"
    return f"of type `{type(value).__name__}`"


def _summary(value: object) -> str:
    """The first sentence of a docstring, as HTML."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = html.escape(_SENTENCE_END.split(text, maxsplit=1)[0].rstrip(":"), quote=False)
    sentence = re.sub(r":\w+:`~?\.?([^`<]*?)`", r"``\1``", sentence)
    return re.sub(r"`{1,2}([^`]+)`{1,2}_?_?", r"<code>\1</code>", sentence)
