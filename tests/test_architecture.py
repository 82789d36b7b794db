"""The import table of CONTRIBUTING.md, and what may be loaded when."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "surefoot"

HEAVY = (
    "torch", "transformers", "sklearn", "matplotlib", "openai", "pyarrow",
    "starlette", "uvicorn", "prometheus_client", "sqlalchemy", "aiohttp",
)  # fmt: skip
"""Packages that take long to load, so that neither ``import surefoot`` nor ``--help`` may load them."""

MAY_IMPORT_TORCH = (
    "surefoot.policies.pretrained",
    "surefoot.policies.transformers",
    "surefoot.models",
    "surefoot.training",
    "surefoot.rl",
)
"""Modules, with all below them, that may import torch when they are loaded."""

REPORT = f"""
import json, sys
print("loaded:" + json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def loaded_after(program: str) -> list[str]:
    """Heavy packages in a fresh interpreter after ``program``."""
    done = subprocess.run(
        [sys.executable, "-c", program + REPORT], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.rpartition("loaded:")[2])
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def imported_on_load(tree: ast.AST) -> Iterator[str]:
    """Absolute names imported when the module is loaded: not inside functions, not for type checkers only."""
    below: Iterable[ast.AST] = ast.iter_child_nodes(tree)
    match tree:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            below = tree.orelse
    for node in below:
        yield from imported_on_load(node)


def test_the_scan_sees_what_is_imported_on_load_and_nothing_else() -> None:
    text = """
import a.b, c as d
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import never
else:
    import otherwise
try:
    from e import f
except ImportError:
    import g
class K:
    import h
    def method(self):
        import never
def function():
    from never import x
from . import never
"""
    assert list(imported_on_load(ast.parse(text))) == ["a.b", "c", "typing", "otherwise", "e", "g", "h"]


@pytest.mark.slow
def test_imports_go_downwards_through_the_ranks() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def import_circles() -> list[list[str]]:
    """Groups of modules that import one another, on load or inside functions (Tarjan's algorithm)."""
    graph = grimp.build_graph("surefoot", cache_dir=None, exclude_type_checking_imports=True)
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in order:
                visit(imported)
            if imported in stack:
                lowest[module] = min(lowest[module], lowest[imported])
        if lowest[module] == order[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                circles.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph.modules):
        if module not in order:
            visit(module)
    return circles


@pytest.mark.slow
def test_no_modules_import_one_another() -> None:
    assert import_circles() == []


def test_only_modules_that_compute_with_torch_import_it_on_load() -> None:
    modules = {module_name(path): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert "surefoot.records" in modules
    offenders = [
        name
        for name, text in modules.items()
        if not within(name, MAY_IMPORT_TORCH)
        and any(within(found, ("torch",)) for found in imported_on_load(ast.parse(text)))
    ]
    assert offenders == [], "import torch inside the function that needs it, or move the code to a lower rank"


def test_no_shared_value_is_read_before_an_await_and_written_after_it() -> None:
    # In ``self.n += await work()``, Python reads ``self.n`` first: what other tasks add meanwhile is lost.
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name)
        if any(isinstance(part, ast.Await) for part in ast.walk(node.value))
    ]
    assert found == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import surefoot, surefoot.records, surefoot.protocols, surefoot.errors") == []


def test_settings_and_light_parts_of_models_and_policies_load_nothing_heavy() -> None:
    program = """
import surefoot.scores
from surefoot.models import CheckpointCard, Encoding, LabelScorer, Lora, VerifierFormat
from surefoot.policies import PromptFormat, render_chat, sample_traces
"""
    assert loaded_after(program) == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_asking_for_help_loads_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import sys
from surefoot.cli import main
sys.argv = ["surefoot", *{arguments!r}]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
assert not code, code
"""
    assert loaded_after(program) == []


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surefoot", "--help"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "quickstart" in done.stdout
