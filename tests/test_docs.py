"""What the documentation says exists: links, commands, options, and programs that run."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest
import yaml

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from reference import api_pages, command_pages

TEXTS = (".py", ".md", ".yaml", ".toml", ".ipynb", ".sh")
ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("README.md"))
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "LOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(
    r"^(?P<mark>```+|~~~+)[ ]*(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=mark)[ ]*$", re.M | re.S
)
HEADING = re.compile(r"^(#{1,6})[ ]+(.+?)[ ]*#*$", re.M)
LINK = re.compile(
    r"""\]\(\s*<?([^\s<>)]+)>?[^)\n]*\)"""  # [text](target "title"), images too
    r"""|^\[[^\]\n]+\]:[ ]*<?([^\s<>]+)>?"""  # [name]: target
    r"""|(?:href|src)="([^"]+)\"""",  # HTML
    re.M,
)


def prose(text: str) -> str:
    """``text`` without fenced blocks and code spans."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))


def blocks(text: str, *languages: str) -> list[str]:
    """Bodies of the fenced blocks in one of ``languages``."""
    return [found["body"] for found in FENCE.finditer(text) if found["language"] in languages]


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives to the headings of a page."""
    seen: dict[str, int] = {}
    result = set(re.findall(r'(?:id|name)="([^"]+)"', text))
    for _, title in HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        result.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return result


def broken_links(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Links of ``page`` to files below ``root``, or to headings, that do not exist."""
    for found in LINK.finditer(prose(page.read_text(encoding="utf-8"))):
        target = next(group for group in found.groups() if group)
        if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.I):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / unquote(name)).resolve() if name else page
        if not path.exists():
            yield f"{target}: no such file"
        elif not path.is_relative_to(root.resolve()):
            yield f"{target}: outside the repository"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


@cache
def commands() -> dict[str, Any]:
    """Every command and group as ``surefoot NAME``; the program itself as ``surefoot``."""
    from surefoot.cli import app, load_command
    from surefoot.cli.commands import COMMANDS, GROUPS

    paths = [*GROUPS, *(path for path in COMMANDS if path not in GROUPS)]
    return {"surefoot": app} | {f"surefoot {path}": load_command(path) for path in paths}


def options(command: Any) -> list[str]:
    """Long options of a command, both halves of on/off pairs."""
    shown = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    names = [name for p in shown for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]
    return [name for name in names if name not in ("--help", "--help-all")]


def sections(text: str) -> dict[str, str]:
    """Text under each heading that begins with ``surefoot``, up to the next heading of its level or above."""
    bare = FENCE.sub(lambda found: found[0].replace("\n#", "\n "), text)  # comments in code are no headings
    result: dict[str, str] = {}
    for found in HEADING.finditer(bare):
        level, title = len(found[1]), found[2].replace("`", "").strip()
        end = re.compile(rf"^#{{1,{level}}}[ ]", re.M).search(bare, found.end())
        if title.split()[0] == "surefoot":
            result[title] = bare[found.end() : end.start() if end else len(bare)]
    return result


def shell_commands(text: str) -> Iterator[list[str]]:
    """Words of every ``surefoot ...`` line in shell blocks; a trailing backslash continues a line."""
    for block in blocks(text, "bash", "sh", "shell", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and Path(words[0]).name == "surefoot":
                end = next(
                    (i for i, word in enumerate(words) if word in ("|", ">", "&&", ";", "2>")), len(words)
                )
                yield ["surefoot", *words[1:end]]


def unknown_in(words: list[str], known: dict[str, Any]) -> Iterator[str]:
    """What a documented command line names that the program does not have."""
    ours = words[1 : words.index("--")] if "--" in words else words[1:]  # after it comes another program's
    name, rest = "surefoot", ours
    while rest and f"{name} {rest[0]}" in known:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if isinstance(known[name], click.Group) and rest and not rest[0].startswith("-"):
        yield f"{name} {rest[0]}"
    allowed = {option for p in known[name].params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    used = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    yield from (f"{name} {option}" for option in used if option not in allowed)


def test_the_readers_of_markdown_read_what_is_there() -> None:
    page = "# A `b`: c\n[x](y.md#z) `[no](no.md)`\n"
    page += "```bash\n# no\n$ .venv/bin/surefoot a \\\n  --b=1 | head\n```\n"
    page += "## surefoot a\nuses `--b`\n### Notes\nmore\n## A `b`: c\n[r]: e.md\n"
    assert anchors(page) == {"a-b-c", "surefoot-a", "notes", "a-b-c-1"}
    assert [next(filter(None, found.groups())) for found in LINK.finditer(prose(page))] == ["y.md#z", "e.md"]
    assert list(shell_commands(page)) == [["surefoot", "a", "--b=1"]]
    assert sections(page) == {"surefoot a": "\nuses `--b`\n### Notes\nmore\n"}


@pytest.mark.parametrize(
    "page", [*PAGES, *NOTEBOOKS, *BENCHMARKS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_to_files_and_headings_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_page_holds_two_versions_of_a_passage(page: Path) -> None:
    assert not re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text(encoding="utf-8"), re.M)


def test_the_manifest_of_a_cluster_names_what_exists() -> None:
    job = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text(encoding="utf-8"))["spec"]
    words = shlex.split(job["entrypoint"])
    assert list(unknown_in(words, commands())) == []
    cluster = job["rayClusterSpec"]
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert int(words[words.index("--workers") + 1]) == groups["gpu"]["replicas"], "a GPU for each worker"
    for group in (cluster["headGroupSpec"], *groups.values()):
        pod = group["template"]["spec"]
        [container], [volume] = pod["containers"], pod["volumes"]
        [mount] = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        paths = [word for word in words if word.startswith("/")] + [one["value"] for one in container["env"]]
        assert all(path.startswith(f"{mount['mountPath']}/") for path in paths), "on a disk that all share"


def test_the_made_pages_describe_every_command_and_option() -> None:
    pages = command_pages()
    described = {name: text for text in pages.values() for name, text in sections(text).items()}
    assert set(described) == set(commands()) - {"surefoot"}
    missing = [
        f"{name} {option}"
        for name, command in commands().items()
        for option in options(command)
        if name != "surefoot"
        and option not in ("--config", "--set")
        and not re.search(rf"{re.escape(option)}(?![\w-])", described[name])
    ]
    assert missing == []


def test_the_made_pages_have_commands_and_links_that_exist(tmp_path: Path) -> None:
    pages = command_pages()
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text, "utf-8")
    assert [fault for name in pages for fault in broken_links(tmp_path / f"{name}.md", tmp_path)] == []
    lines = [words for text in pages.values() for words in shell_commands(text)]
    assert [fault for words in lines for fault in unknown_in(words, commands())] == []


def test_the_made_pages_list_every_public_name() -> None:
    pages = api_pages()
    assert "run_search" in pages["surefoot"]
    for name, text in pages.items():
        public = getattr(importlib.import_module(name), "__all__", []) if name != "index" else []
        assert [word for word in public if word not in text] == []
        titles = [title for title in ("Functions", "Classes", "Values") if f"## {title}\n" in text]
        assert [title for _, title in HEADING.findall(FENCE.sub("", text))][1:] == titles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_in_shell_blocks_exist(page: Path) -> None:
    lines = list(shell_commands(page.read_text(encoding="utf-8")))
    known = commands() if lines else {}
    assert [fault for words in lines for fault in unknown_in(words, known)] == []


def test_the_commands_that_the_pages_of_the_server_name_exist() -> None:
    templates = (ROOT / "src/surefoot/server/pages/templates").glob("*.html")
    text = "".join(path.read_text(encoding="utf-8") for path in templates)
    lines = [shlex.split(line) for line in re.findall(r"<code>(surefoot [^<]+)</code>", text)]
    assert ["surefoot", "serve", "prune"] in lines
    known = commands()
    for words in lines:
        assert list(unknown_in(words, known)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_compile(page: Path) -> None:
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8"), "python")):
        compile(block, f"{page.name}, python block {number}", "exec")


def test_the_program_of_contributing_runs(tmp_path: Path) -> None:
    """Later blocks use names of earlier ones; blocks of files inside the package are text."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    stubs = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.pyi"))
    found = [block for block in blocks(text, "python", "text") if block not in stubs]
    assert len(found) >= 5
    done = subprocess.run(
        [sys.executable, "-"],
        input="\n".join(found),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_contributing_adds_lines_beside_lines_that_exist() -> None:
    """Its differences take no line away and name lines of two files, so that a newcomer finds them."""
    files = ("src/surefoot/server/app.py", "tests/server/gateway/test_gateway_roles.py")
    lines = {line for name in files for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
    found = blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "diff")
    changed = [line for block in found for line in block.splitlines()]
    assert {line[0] for line in changed} == {" ", "+"}, "who follows a page that takes a line away breaks it"
    neighbours = [line[1:] for line in changed if line[0] == " "]
    assert len(neighbours) >= 3
    assert [line for line in neighbours if line not in lines] == []


def test_the_tests_that_the_security_page_names_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named, files = re.findall(r"`(test_\w+)`", page), re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert named
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert [name for name in named if f"def {name}(" not in text] == []
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_no_install_line_names_the_package_index() -> None:
    """surefoot is not published: ``pip install surefoot`` would install nothing, or a stranger's package."""
    folders = ("src", "docs", "examples", "benchmarks", ".ci")
    texts = [path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in TEXTS]
    texts += [path for path in ROOT.iterdir() if path.suffix in TEXTS or path.name == "Makefile"]
    line = re.compile(r"(?:pip|uv|pipx) +(?:\w+ +)*?(?:install|add) [^\n]*?(?<![/.\w])surefoot(?![\w/-])")
    named = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        for match in line.finditer(path.read_text(encoding="utf-8"))
        if "in a clone of surefoot" not in match[0]
    }
    assert sorted(named) == []


def test_the_index_of_journeys_names_tests_that_exist() -> None:
    folder = ROOT / "tests" / "journeys"
    index = (folder / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .*? \| (.*?) \|$", index, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 14))
    named = [name for _, tests in rows for name in re.findall(r"`([\w./]*test_\w+\.py)`", tests)]
    assert [name for name in named if not (folder / name).is_file()] == []
