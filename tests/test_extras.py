"""What is missing is said in one sentence, with the line that installs it, and nothing else needs it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from surefoot.extras import EXTRAS, sentence

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import install_size  # noqa: E402 - a script has no package

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CORE = {re.match(r"[\w-]+", one)[0].lower().replace("-", "_") for one in PROJECT["dependencies"]}
BROUGHT_BY = {
    "pydantic_core": "pydantic",
    "markupsafe": "jinja2",
    "anyio": "starlette",
    "langchain_core": "langgraph",
    "tokenizers": "transformers",
}
"""Packages that come with one that is declared."""
OTHERS = {"prime_rl", "verl"}
"""Programs that import this package."""
BEHIND = {
    "models": (
        "models.engine", "models.families", "models.kinds.classifier",
        "models.kinds.generative", "models.kinds.implicit", "models.kinds.yes_no",
        "policies.pretrained", "policies.transformers", "rl",
        "training",
    ),
    "server": ("server",),
    "train": ("rl.engines.trl_trainer",),
    "trl": ("rl.engines.trl_trainer",),
    "pydantic-ai": ("guard.pydantic_ai",),
    "openai-agents": ("guard.openai_agents",),
    "langgraph": ("guard.langgraph",),
}  # fmt: skip
"""Modules and packages that need an extra as soon as they are imported."""
OPTIONAL = {module for modules in EXTRAS.values() for module in modules}
HIDDEN = OPTIONAL | {name for name, package in BROUGHT_BY.items() if package in OPTIONAL} | {"rich", "scipy"}


class Imports(ast.NodeVisitor):
    """Imports of a module that run: at once, and when a function is called."""

    def __init__(self, tree: ast.AST) -> None:
        self.now: set[str] = set()
        self.later: set[str] = set()
        self._depth = 0
        self.visit(tree)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Import(self, node: ast.Import) -> None:
        (self.later if self._depth else self.now).update(name.name for name in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level:
            names = {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
            (self.later if self._depth else self.now).update(names)


@pytest.fixture(scope="module")
def imports() -> dict[str, Imports]:
    """By module."""
    source = ROOT / "src"
    return {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): Imports(
            ast.parse(path.read_text("utf-8"))
        )
        for path in source.rglob("*.py")
    }


def package_of(name: str) -> str:
    """The declared package that an import comes from."""
    top = name.partition(".")[0]
    return BROUGHT_BY.get(top, top)


def reached(module: str, imports: dict[str, Imports]) -> set[str]:
    """Optional packages that importing ``module`` imports."""
    seen, waiting, found = set(), {module}, set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        found |= {package for one in imports[name].now if (package := package_of(one)) in OPTIONAL}
        waiting |= {one for one in imports[name].now if one in imports} - seen
    return found


def test_every_import_is_of_the_core_or_of_an_extra(imports):
    for module, of_module in imports.items():
        packages = {package_of(name) for name in of_module.now | of_module.later}
        foreign = packages - {"surefoot"} - sys.stdlib_module_names - CORE - OPTIONAL - OTHERS
        assert not foreign, f"{module} imports {foreign}, which nothing declares"


def test_a_module_needs_at_once_only_what_its_package_is_behind(imports):
    for module in imports:
        short = f"{module.removeprefix('surefoot.')}."
        extras = [
            extra
            for extra, places in BEHIND.items()
            if any(short.startswith(f"{place}.") for place in places)
        ]
        allowed = {package for extra in extras for package in EXTRAS[extra]}
        needed = reached(module, imports) - allowed
        assert not needed, f"import {needed} in functions of {module}, or name it in BEHIND"


def hidden(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program`` where no optional package can be imported, nor what they bring."""
    names = sorted(HIDDEN)
    finder = (
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {names!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    command = [sys.executable, "-c", finder + program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_all_other_modules_can_be_imported_without_an_extra(imports, tmp_path):
    runs_alone = ("surefoot.__main__", "surefoot.sandbox.inside")
    modules = [name for name in imports if not name.startswith(runs_alone) and not reached(name, imports)]
    assert len(modules) > 200
    program = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    assert hidden(program, *modules, cwd=tmp_path).stderr == ""


def test_the_core_does_its_work_and_names_the_extra_of_other_work(tmp_path):
    commands = [*((command, None) for command in install_size.COMMANDS), *install_size.NEEDS.items()]
    program = """
import json
from surefoot.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["surefoot", *words]
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = ended.code
    print(f"end of a command: {status or 0}", file=sys.stderr)
"""
    install_size.write_inputs(tmp_path)
    with install_size.model_server() as server:
        lines = json.dumps(install_size.in_order([command for command, _ in commands], server))
        said = hidden(program, lines, cwd=tmp_path).stderr
    parts = re.findall(r"(.*?)end of a command: (\d+)\n", said, re.DOTALL)
    faults = [
        f"{command}: {fault}"
        for (command, extra), (errors, status) in zip(commands, parts, strict=True)
        if (fault := install_size.fault_of(int(status), errors, extra))
    ]
    assert faults == []


def test_the_table_is_that_of_the_package():
    declared = PROJECT["optional-dependencies"]
    named = {
        extra: {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in needs}
        for extra, needs in declared.items()
    }
    assert set(EXTRAS) == set(named) - {"dev", "docs"}  # both are for work on the package
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        for module in modules:
            if module in distributions:  # an extra that is not installed here cannot be looked up
                installed = {name.lower().replace("_", "-") for name in distributions[module]}
                assert installed & named[extra], (extra, module)


def test_the_guide_lists_every_extra():
    guide = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    assert [extra for extra in EXTRAS if f"| `{extra}` |" not in guide] == []


def without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line where ``module`` is not installed."""
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['surefoot', *{words!r}]\n"
        "from surefoot.cli import main; main()"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_a_command_without_its_extra_is_one_sentence(tmp_path):
    ended = without("sqlalchemy", "serve", "keys", "list", "--database", str(tmp_path / "x.db"))
    assert ended.returncode == 1
    assert ended.stderr == (
        "surefoot: this command needs the package sqlalchemy: pip install '.[server]' in a clone of "
        "surefoot\n"
    )


def test_a_package_of_no_extra_has_no_sentence():
    assert sentence("numpy.linalg") is None
    assert sentence("psycopg.rows") == "the package psycopg: pip install '.[postgres]' in a clone of surefoot"


@pytest.mark.parametrize("module", ["peft"])
def test_the_python_api_says_the_same(module, monkeypatch):
    from surefoot.errors import MissingExtraError
    from surefoot.extras import need

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingExtraError, match=r"an adapter needs the package peft: pip install '\.\[train\]' in a clone"
    ):
        need(module, "an adapter")
