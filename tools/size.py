"""Hold the size of the project to limits that may only fall.

    python tools/size.py            # the table; fails if a figure is above its limit, or more than 1 % below
    python tools/size.py --lower    # lower the limits of [tool.size] in pyproject.toml to the figures

Counted are lines of Python and stubs in each package of ``src/surefoot``, commands, their options (arguments
included) in all and by distinct name, the most options that a command's ``--help`` shows, pages below
``docs``, and lines of ``benchmarks`` without ``worlds`` and ``readers``, which were parts of the package. A
change that needs a higher limit lowers another first and says so in its commit.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from surefoot.cli import load_settings
from surefoot.cli.commands import COMMANDS
from surefoot.cli.parser import first_screen
from surefoot.cli.settings import options_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "pyproject.toml"
SLACK = 0.01


def lines(paths: Iterable[Path]) -> int:
    """Lines of these files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def packages() -> dict[str, int]:
    """Lines of each package of the source; ``modules`` are those outside packages."""
    source, counts = ROOT / "src" / "surefoot", Counter[str]()
    for path in source.rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(source).parts
            counts[parts[0] if len(parts) > 1 else "modules"] += lines([path])
    return dict(sorted(counts.items()))


def figures() -> dict[str, int]:
    """Every figure by the name of its limit."""
    commands = [load_settings(path) for path in COMMANDS]
    options = [option for command in commands for option in options_of(command) if option.names]
    benchmarks = [
        path
        for path in (ROOT / "benchmarks").rglob("*.py")
        if path.relative_to(ROOT / "benchmarks").parts[0] not in ("worlds", "readers")
    ]
    by_package = packages()
    return {
        "total": sum(by_package.values()),
        "commands": len(commands),
        "options": len(options),
        "distinct_options": len({option.names[0] for option in options}),
        "first_screen": max(len(first_screen(command)) for command in commands),
        "docs_pages": len(list((ROOT / "docs").rglob("*.md"))),
        "benchmarks": lines(benchmarks),
        **{f"packages.{name}": count for name, count in by_package.items()},
    }


def limits() -> dict[str, int]:
    """The limits of ``pyproject.toml``."""
    table = tomllib.loads(PROJECT.read_text("utf-8"))["tool"]["size"]
    below = {f"packages.{name}": limit for name, limit in table.pop("packages").items()}
    return table | below


def lower(found: dict[str, int], allowed: dict[str, int]) -> None:
    """Write limits that are higher than the figures anew."""
    text = PROJECT.read_text("utf-8")
    head, mark, size = text.partition("[tool.size]\n")
    for name, figure in found.items():
        if figure < allowed.get(name, figure):
            key = name.rpartition(".")[2]
            size = re.sub(rf"^{key} = \d+", f"{key} = {figure}", size, count=1, flags=re.M)
    PROJECT.write_text(head + mark + size, "utf-8")


def main() -> int:
    """Print the table; 1 if a limit does not hold."""
    found, allowed = figures(), limits()
    if "--lower" in sys.argv:
        lower(found, allowed)
        allowed = limits()
    faults = [f"{name} has no figure: remove its limit" for name in allowed.keys() - found.keys()]
    for name, figure in found.items():
        limit = allowed.get(name)
        print(f"{name:<24}{figure:>8,}{'' if limit is None else f'{limit:>9,}'}")
        if limit is None:
            faults.append(f"{name} has no limit")
        elif figure > limit:
            faults.append(f"{name}: {figure:,} exceeds its limit of {limit:,}")
        elif figure < limit * (1 - SLACK):
            faults.append(f"{name}: {figure:,} is below its limit of {limit:,}; run tools/size.py --lower")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
