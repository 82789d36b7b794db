"""What is missing is said in one sentence, with the line that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from surefoot.extras import EXTRAS, sentence

ROOT = Path(__file__).parents[1]


def test_the_table_is_that_of_the_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
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
