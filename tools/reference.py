"""Write the pages in ``docs/reference/commands`` from the commands: ``python tools/reference.py``.

The text of a page above its first command is written by hand and stays. Options that several commands share
are described once, in ``options.md``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS, GROUPS
from surefoot.cli.settings import REQUIRED, Command, Option, examples, help_text, options_of, output_fields

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "commands"

_PAGE = {
    "segment": "import",
    "export": "import",
    "execute": "score",
    "select": "score",
    "expert-iteration": "imitate",
    "serve-config": "serve",
}
"""Pages of top-level commands that share another command's page."""
_SHARED = 3
"""Commands that an option must be in to be described in ``options.md``."""
_GENERATED = re.compile(r"^## (?!Settings$).*", re.M | re.S)
"""Everything from the first section on; only ``README.md`` has a section of hand-written text."""


Shared = dict[str, tuple[str, str]]
"""Row of an option that several commands have: its section in ``options.md``, and its usual default."""


def shared_options(commands: Iterable[type[Command]]) -> Shared:
    """The options that are the same in several commands; common ones are described in full on every page."""
    defaults: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for command in commands:
        for option in _shown(command):
            if option.panel or not option.common:
                defaults[_row(option)][option.panel or "General", _default(option)] += 1
    return {row: counts.most_common(1)[0][0] for row, counts in defaults.items() if counts.total() >= _SHARED}


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """Every page with its generated part."""
    commands = {path: load_settings(path) for path in COMMANDS}
    shared = shared_options(commands.values())
    sections: dict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys(_with_groups()):
        top = path.split(" ")[0]
        text = command_section(commands[path], shared) if path in commands else GROUPS[path]
        if path not in commands and " " not in path:
            continue  # the page itself introduces the group
        sections[f"{_PAGE.get(top, top)}.md"].append(f"## surefoot {path}\n\n{text}\n")
    sections["options.md"] = _options_page(shared)
    sections["README.md"] = [_index()]
    return {
        folder / name: _introduction(folder / name) + "\n".join(parts) for name, parts in sections.items()
    }


def command_section(command: type[Command], shared: Shared) -> str:
    """The text on one command: description, options, examples."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    also: dict[str, list[str]] = defaultdict(list)
    for option in _shown(command):
        row = _row(option)
        if option.common or row not in shared:
            names, meaning = row.split(" | ", 1)
            rows.append(f"| {names} | {_default(option)} | {meaning} |")
            continue
        (section, usual), default = shared[row], _default(option)
        note = f" ({default or 'not set'})" if default != usual else ""
        also[section].append(f"{row.split(' | ', 1)[0]}{note}")
    if output_fields(command):
        rows.append("| `--force` | | Overwrite existing output. |")
    rows.append("| `--config`, `--set` | | [Settings](README.md#settings) from a file or by name. |")
    blocks = [help_text(command), "\n".join(rows)]
    if also:
        lines = (
            f"- [{title}](options.md#{_anchor(title)}): {', '.join(names)}" for title, names in also.items()
        )
        blocks.append("Shared options:\n\n" + "\n".join(lines))
    if commands := examples(command):
        blocks.append("\n".join(["```bash", *commands, "```"]))
    return "\n\n".join(blocks)


def _with_groups() -> Iterable[str]:
    """Paths of commands, each group before its first command."""
    for path in COMMANDS:
        words = path.split(" ")
        yield from (" ".join(words[:end]) for end in range(1, len(words) + 1))


def _options_page(shared: Shared) -> list[str]:
    tables: dict[str, list[str]] = defaultdict(lambda: ["| option | default | meaning |", "|---|---|---|"])
    for row, (title, default) in shared.items():
        names, meaning = row.split(" | ", 1)
        tables[title].append(f"| {names} | {default} | {meaning} |")
    return [f"## {title}\n\n" + "\n".join(rows) + "\n" for title, rows in sorted(tables.items())]


def _index() -> str:
    rows = ["## All commands\n", "| command | |", "|---|---|"]
    for path, (_, text) in COMMANDS.items():
        top = path.split(" ")[0]
        rows.append(f"| [`{path}`]({_PAGE.get(top, top)}.md#surefoot-{path.replace(' ', '-')}) | {text} |")
    return "\n".join(rows) + "\n"


def _introduction(page: Path) -> str:
    if page.exists():
        return _GENERATED.sub("", page.read_text("utf-8"))
    return f"# {page.stem.capitalize()}\n\n"


def _shown(command: type[Command]) -> list[Option]:
    return [option for option in options_of(command) if option.names]


def _row(option: Option) -> str:
    """Names and meaning of an option, as columns of a table."""
    names = ", ".join(f"`{name}`" for name in option.names)
    if option.kind is bool:
        names += f", `{option.negative}`"
    notes = [f"`{'`, `'.join(option.choices)}`"] if option.choices else []
    notes += option.notes
    return f"{names} | {option.description}" + (f" ({'; '.join(notes)})" if notes else "")


def _default(option: Option) -> str:
    text = option.default_text
    return text if option.default is REQUIRED or not text else f"`{text}`"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
