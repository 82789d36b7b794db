"""The public face: what packages offer, and that documents and programs use nothing else."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "surefoot"
PACKAGES = sorted(
    ".".join(("surefoot", *stub.parent.relative_to(SOURCE).parts)) for stub in SOURCE.rglob("__init__.pyi")
)
MODULES = {f"surefoot.{path.stem}" for path in SOURCE.glob("[a-z]*.py")}
"""Modules that are no package are public as they stand."""

ENGINES = ("agents", "langchain_core", "langgraph", "pydantic_ai", "trl", "verl")
"""Trainers and agent frameworks whose adapters need them."""

INNER = ("worlds", "readers")
"""Folders of benchmarks whose worlds and file formats are made of the package's own parts."""
PROGRAMS = [
    *sorted((ROOT / "examples").glob("*.py")),
    *(
        path
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        if path.relative_to(ROOT).parts[1] not in INNER
    ),
]
USERS = [
    path for folder in ("examples", "benchmarks", "recipes") for path in sorted((ROOT / folder).rglob("*.py"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def imports(text: str) -> set[tuple[str, str]]:
    """Module and name of everything that a program imports from the package."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "surefoot":
            names |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "surefoot"}
    return names


def private(text: str) -> list[str]:
    return sorted(
        f"{module}: {name}" for module, name in imports(text) if module not in {*MODULES, *PACKAGES}
    )


def missing(text: str) -> list[str]:
    """Names that a program imports from a module or package that lacks them."""
    absent = []
    for module, name in sorted(imports(text)):
        package = importlib.import_module(module)
        if name and name not in dir(package) and not hasattr(package, name):
            try:  # a module of a package
                importlib.import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                absent.append(f"{module}: {name}")
    return absent


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_exists_and_is_listed(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__doc__
    assert package.__all__
    for public in package.__all__:
        try:
            assert getattr(package, public) is not None
        except ModuleNotFoundError as missing:
            assert missing.name in ENGINES  # noqa: PT017
    assert set(package.__all__) <= set(dir(package))


def test_the_package_tells_its_story_with_few_names() -> None:
    assert 25 <= len(surefoot.__all__) <= 40
    assert {"load_prm", "read_records", "segment_trace", "run_search", "show"} <= set(surefoot.__all__)
    with pytest.raises(AttributeError):
        _ = surefoot.nothing_of_this_name


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_programs_import_public_names_only(path: Path) -> None:
    assert private(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_that_programs_import_exist(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_import_public_names_that_exist(page: Path) -> None:
    for block in PYTHON.findall(page.read_text(encoding="utf-8")):
        assert private(block) == []
        assert missing(block) == []


TYPING = """
[mypy]
follow_imports = skip

[mypy-surefoot,surefoot.records,pydantic.*]
follow_imports = silent
"""
"""Reads the modules that the test is about alone; all that they could reach takes more than a minute."""


@pytest.mark.slow
def test_the_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    program, config = tmp_path / "program.py", tmp_path / "mypy.ini"
    config.write_text(TYPING)
    program.write_text("import surefoot\nreveal_type(surefoot.Problem)\nsurefoot.no_such_name\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={config}", str(program)],
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": str(SOURCE.parent), "MYPY_CACHE_DIR": str(tmp_path)},
    )
    assert "def (*, schema_version" in done.stdout
    assert 'Module has no attribute "no_such_name"' in done.stdout
