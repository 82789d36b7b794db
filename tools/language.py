"""Check the language of the package against limits that may only fall.

    python tools/language.py            # fails if a limit of [tool.language] in pyproject.toml is exceeded
    python tools/language.py --lines    # list every line that counts

Counted are phrases that engineers of the field do not write ("is no X", "what it is", "those of"), variables
named by bare words ("one", "found"), and public classes that share a name. After an improvement, lower the
limits to the figures that this prints.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "surefoot"
SUFFIXES = (".py", ".md", ".html")

PHRASES = re.compile(
    r"\b(?:is|are|was|were|has|have|had|takes?|gives?|needs?|knows?) no [a-z]"
    r"|\bwhat (?:it|they|is|was)\b|\bthose of\b|\bthat of\b|\bof its own\b|\bby itself\b|\bon its own\b"
    r"|\banew\b|\bbeside\b|\btold\b|\bsaid\b|\bdrawn?\b(?= again)|\bdrawn\b|\bnobody\b|\bsomebody\b|\bWho \b"
    r"|\bgoes on\b|\bmend(?:s|ed)?\b|\bis taken for\b|\bnot told apart\b|\blevel with\b"
    r"|\bstands? (?:for|in|at|on)\b|\bput (?:in|back)\b"
)
BARE = re.compile(
    r"found|said|made|one|given|known|kept|told|drawn|asked|shown|wanted|rest|some|again|every|own|its|whole"
    r"|places?|taken|left|others|before|after|here|there"
)


def package_of(path: Path) -> str:
    """``docs``, ``README.md``, a package of ``src``, or ``modules`` for modules outside packages."""
    if SOURCE not in path.parents:
        return path.relative_to(ROOT).parts[0]
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "modules"


def files() -> list[Path]:
    """Every file that a user or contributor reads."""
    paths = (path for folder in (SOURCE, ROOT / "docs") for path in sorted(folder.rglob("*")))
    return [ROOT / "README.md", *(path for path in paths if path.suffix in SUFFIXES)]


def bare_names(tree: ast.AST) -> tuple[list[int], int]:
    """Lines that assign a variable named by a bare word, and the number of all assignments."""
    stores = [
        node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return [node.lineno for node in stores if BARE.fullmatch(node.id)], len(stores)


def main() -> None:
    """Count, print, and exit with 1 if a limit is exceeded."""
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["language"]
    lines, phrases = defaultdict[str, int](int), defaultdict[str, int](int)
    places: list[str] = []
    bare = assignments = 0
    classes = defaultdict[str, set[Path]](set)
    for path in files():
        text, package, name = path.read_text("utf-8"), package_of(path), path.relative_to(ROOT)
        for number, line in enumerate(text.splitlines(), 1):
            lines[package] += 1
            if count := len(PHRASES.findall(line)):
                phrases[package] += count
                places.append(f"{name}:{number}: {line.strip()}")
        if path.suffix == ".py":
            tree = ast.parse(text)
            at, stores = bare_names(tree)
            bare, assignments = bare + len(at), assignments + stores
            places += [f"{name}:{number}: variable named by a bare word" for number in at]
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].add(path)
    if "--lines" in sys.argv[1:]:
        print("\n".join(places))
    rates = {package: 1000 * phrases[package] / lines[package] for package in lines}
    figures = {
        "phrases_per_thousand_lines": 1000 * sum(phrases.values()) / sum(lines.values()),
        "phrases_in_worst_package": max(rates.values()),
        "bare_variables_percent": 100 * bare / assignments,
        "classes_with_shared_names": sum(len(paths) > 1 for paths in classes.values()),
    }
    worst = max(rates, key=rates.__getitem__)
    failed = False
    for figure, value in figures.items():
        over = value > limits[figure]
        failed |= over
        note = f" ({worst})" if figure == "phrases_in_worst_package" else ""
        print(f"{'over the limit' if over else 'ok':14} {figure}: {value:.2f}{note}, limit {limits[figure]}")
    if shared := sorted(name for name, paths in classes.items() if len(paths) > 1):
        print("shared class names:", ", ".join(shared))
    if failed:
        print("see the lines with: python tools/language.py --lines")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
