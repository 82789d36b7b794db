"""Build the documentation as a site: Sphinx on the Markdown of docs/, with pages made from the code.

    python tools/docs.py [OUT]    # default build/site; open index.html

Every warning is an error, broken links between pages included. Sphinx reads a copy of docs/ with the pages
that the repository does not hold (index, commands, API, changelog); links that leave docs/ are rewritten.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from notebooks import as_markdown
from reference import api_pages, command_pages

ROOT = Path(__file__).resolve().parents[1]
STAGED = ROOT / "build/docs"
CONTENTS = {
    "Tutorial": "tutorial/* notebooks/*",
    "Data and labels": "how-to/install how-to/bring-your-own-data how-to/label how-to/annotate how-to/code",
    "Reward models and search": "how-to/train how-to/other-reward-models how-to/search how-to/evaluate",
    "Agents and serving": "how-to/agents how-to/guard how-to/serve",
    "Training policies": "how-to/reinforcement-learning how-to/rl-servers-and-trainers how-to/imitate",
    "Trust": "how-to/audit how-to/cards security cards/*/README how-to/*",
    "Reference": "reference/command-line commands/index api/index reference/*",
    "Measured results": "results/* LOG",
    "Project": "CHANGELOG CONTRIBUTING SECURITY",
}
"""Pages by heading of the sidebar; a pattern names the pages that no other entry names."""
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "LOG.md", "SECURITY.md")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def pages(entry: str, named: set[str]) -> list[str]:
    """The pages of one entry, without ending."""
    if "*" not in entry:
        return [entry]
    files = sorted(STAGED.glob(f"{entry}.md"))
    return [
        page
        for page in (str(file.relative_to(STAGED).with_suffix("")) for file in files)
        if page not in named
    ]


def toctrees() -> str:
    """The sidebar."""
    named = {entry for entries in CONTENTS.values() for entry in entries.split() if "*" not in entry}
    text = ""
    for caption, entries in CONTENTS.items():
        lines = [page for entry in entries.split() for page in pages(entry, named)]
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(lines) + "\n```\n"
    return text


def rewritten(text: str, page: Path) -> str:
    """``text`` of the file ``page`` of the repository, with links as they are in the copy.

    Files that are not on the site are named without a link.
    """

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        file = (page.parent / path).resolve()
        inside = file.relative_to(ROOT / "docs") if file.is_relative_to(ROOT / "docs") else None
        if inside is None and file.parent == ROOT and file.name in ROOT_PAGES:
            inside = Path(file.name)
        if inside is None or file.is_dir():
            return label
        if inside == Path("README.md"):
            inside = Path("index.md")
        here = page.parent.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else Path()
        if inside.suffix == ".ipynb":
            inside = inside.with_suffix(".md")
        return f"{image}[{label}]({'../' * len(here.parts)}{inside}{hash_}{anchor})"

    return _LINK.sub(link, text)


def stage() -> None:
    """Write the copy; unchanged files keep their times, so that Sphinx reads only what changed."""
    wanted: dict[Path, bytes] = {}
    for file in sorted((ROOT / "docs").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            inside = file.relative_to(ROOT / "docs")
            content = file.read_bytes()
            if file.suffix == ".ipynb":
                inside, content = inside.with_suffix(".md"), as_markdown(json.loads(content)).encode()
            wanted[inside] = rewritten(content.decode(), file).encode() if inside.suffix == ".md" else content
    for name in ROOT_PAGES:
        wanted[Path(name)] = rewritten((ROOT / name).read_text(), ROOT / name).encode()
    for folder, made in (("commands", command_pages()), ("api", api_pages())):
        wanted |= {Path(f"{folder}/{name}.md"): text.encode() for name, text in made.items()}
    readme = wanted.pop(Path("README.md")).decode().replace("# Documentation", "# surefoot", 1)
    for path, content in wanted.items():
        _write(STAGED / path, content)
    for file in STAGED.rglob("*"):
        if file.is_file() and file.relative_to(STAGED) not in wanted and file.name != "index.md":
            file.unlink()
    _write(STAGED / "index.md", (readme + toctrees()).encode())


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def main() -> int:
    """Stage, then build."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/site"
    stage()
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(STAGED),
        str(out),
    ]
    status = subprocess.run(command, check=False).returncode  # noqa: S603
    if status == 0:
        shutil.rmtree(out / "_sources", ignore_errors=True)
        print(f"{out / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
