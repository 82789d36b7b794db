"""``docs/reference/commands.md`` from the settings of the commands: ``python -m surefoot.cli.reference``.

The page has a heading for each command. What stands under it is made of the command's docstring and fields;
the introduction and the headings of groups are written by hand.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from pathlib import Path

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS
from surefoot.cli.settings import REQUIRED, Command, Option, has_outputs, options_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"

_HEADING = re.compile(r"^(#{2,3}) `?(surefoot [a-z0-9 -]+?)`?$", re.M)
_EXAMPLE = re.compile(r"Example: `(.+?)`(?: \((.+?)\))?", re.S)


def commands() -> dict[str, type[Command]]:
    """The settings class of every command by its full name."""
    return {f"surefoot {path}": load_settings(path) for path in COMMANDS}


def updated(page: str) -> str:
    """The page with what stands under the heading of each command made again."""
    known = commands()
    headings = list(_HEADING.finditer(page))
    parts, end = [], 0
    for place, heading in enumerate(headings):
        if heading[2] not in known:
            continue
        parts.append(page[end : heading.end()])
        end = headings[place + 1].start() if place + 1 < len(headings) else len(page)
        body = page[heading.end() : end]
        if group := re.search(r"^## ", body, re.M):  # a heading that is no command's
            end = heading.end() + group.start()
        parts.append(f"\n\n{section(known[heading[2]])}\n")
        if end < len(page):
            parts.append("\n")
    return "".join([*parts, page[end:]])


def section(command: type[Command]) -> str:
    """What the page says of one command."""
    text = cleandoc(command.__doc__ or "")
    examples = [" ".join(found[1].split()) for found in _EXAMPLE.finditer(text)]
    prose = re.sub(r"\n{3,}", "\n\n", _EXAMPLE.sub("", text)).strip()
    rows = ["| option | default | meaning |", "|---|---|---|"]
    rows += [_row(option) for option in options_of(command) if option.names]
    if has_outputs(command):
        rows.append("| `--force` | | Write over what is there: see [above](#commands). |")
    rows.append("| `--config`, `--set` | | Settings from a file, or by name: see [above](#settings). |")
    blocks = [prose, "\n".join(rows)]
    if examples:
        blocks.append("\n".join(["```bash", *examples, "```"]))
    return "\n\n".join(blocks)


def _row(option: Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.names)
    if option.kind is bool:
        names += f", `--no-{option.names[0].removeprefix('--')}`"
    default = option.default_text
    shown = default if option.default is REQUIRED or not default else f"`{default}`"
    notes = [f"`{'`, `'.join(option.choices)}`"] if option.choices else []
    notes += [option.bounds] if option.bounds else []
    notes += ["may be repeated"] if option.repeated and not option.flag.argument else []
    text = option.description + (f" ({'; '.join(notes)})" if notes else "")
    return f"| {names} | {shown} | {text} |".replace("  ", " ").replace("| | |", "| | |")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
