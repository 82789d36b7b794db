"""Write the pages in ``docs/reference/commands`` from the commands: ``python -m surefoot.cli.reference``.

The text of a page above its first command is written by hand and stays. Options that several commands share
are described once, in ``options.md``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS, GROUPS
from surefoot.cli.settings import REQUIRED, Command, Option, examples, help_text, options_of, output_fields

FOLDER = Path(__file__).parents[3] / "docs" / "reference" / "commands"

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


@dataclass(frozen=True)
class SharedOptions:
    """Options that several commands have, with their section and usual default."""

    sections: Mapping[str, str]
    """Title of the section by row."""
    defaults: Mapping[str, str]

    @classmethod
    def of(cls, commands: Iterable[type[Command]]) -> SharedOptions:
        """Find the options that are the same in several commands."""
        panels: dict[str, Counter[str]] = defaultdict(Counter)
        defaults: dict[str, Counter[str]] = defaultdict(Counter)
        for command in commands:
            for option in _shown(command):
                if option.common and not option.panel:
                    continue  # described in full on every page
                row = _row(option)
                panels[row][option.panel or "General"] += 1
                defaults[row][_default(option)] += 1
        shared = [row for row, counts in panels.items() if counts.total() >= _SHARED]
        return cls(
            sections={row: panels[row].most_common(1)[0][0] for row in shared},
            defaults={row: defaults[row].most_common(1)[0][0] for row in shared},
        )


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """Every page with its generated part."""
    commands = {path: load_settings(path) for path in COMMANDS}
    shared = SharedOptions.of(commands.values())
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


def command_section(command: type[Command], shared: SharedOptions) -> str:
    """The text on one command: description, options, examples."""
    rows = ["| option | default | meaning |", "|---|---|---|"]
    also: dict[str, list[str]] = defaultdict(list)
    for option in _shown(command):
        row = _row(option)
        if option.common or row not in shared.sections:
            names, meaning = row.split(" | ", 1)
            rows.append(f"| {names} | {_default(option)} | {meaning} |")
            continue
        default = _default(option)
        note = f" ({default or 'not set'})" if default != shared.defaults[row] else ""
        also[shared.sections[row]].append(f"{row.split(' | ', 1)[0]}{note}")
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


def _options_page(shared: SharedOptions) -> list[str]:
    tables: dict[str, list[str]] = defaultdict(lambda: ["| option | default | meaning |", "|---|---|---|"])
    for row, title in shared.sections.items():
        names, meaning = row.split(" | ", 1)
        tables[title].append(f"| {names} | {shared.defaults[row]} | {meaning} |")
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
    notes += [option.bounds] if option.bounds else []
    notes += ["may be repeated"] if option.repeated and not option.flag.argument else []
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
