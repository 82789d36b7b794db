"""The list of quick forms, the folders' pages, and the form of figures."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common import figures as common
from benchmarks.quick import BENCHMARKS, ROOT, Quick, run
from surefoot.stats import Interval

FOLDER = ROOT / "benchmarks"
SCRIPTS = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    if path.parent.name != "common" and re.search(r"\barguments\(", path.read_text())
}


def test_every_script_with_a_quick_form_is_listed() -> None:
    shares_a_parser = {"performance.incremental"}
    assert {quick.module for quick in BENCHMARKS.values()} == SCRIPTS | shares_a_parser


def test_every_folder_has_a_page_that_the_table_links() -> None:
    table = (FOLDER / "README.md").read_text()
    folders = {name.partition(".")[0] for name in SCRIPTS}
    assert [name for name in folders if f"]({name}/README.md)" not in table] == []
    assert [name for name in folders if not (FOLDER / name / "README.md").is_file()] == []


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_of_the_pages_lead_to_sections() -> None:
    links = 0
    for page in [*FOLDER.glob("README.md"), *FOLDER.glob("*/README.md")]:
        for link, anchor in re.findall(r"\]\(((?:[\w./-]+\.md)?)(#[\w-]+)?\)", page.read_text()):
            there = page.parent / link if link else page
            assert there.is_file(), f"{page}: {link}"
            assert not anchor or anchor[1:] in anchors(there), f"{page}: {link}{anchor}"
            links += 1
    assert links > 50


def test_what_cannot_be_measured_here_is_no_failure(tmp_path: Path) -> None:
    missing = tmp_path / "data"
    assert run("x", Quick("x.run", needs=missing)) == ("left out", 0.0, [f"{missing} is not there"])


def test_figures_have_one_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draws = np.random.default_rng(0).normal(size=5000)
    found = common.over_draws(0.0, draws.tolist())
    assert (found.low, found.high) == pytest.approx((-1.96, 1.96), abs=0.1)
    figures = [
        common.figure("a b", Interval(value=2.0, low=1.0, high=3.0), "points", note="why"),
        common.times("raced", [1.0, 4.0, 2.0]),
        common.over_rounds("took", [3.0, 1.0, 2.0], "s"),
        common.figure("unknown", None),
    ]
    keys = ("name", "value", "low", "high", "ratio")
    assert [tuple(one[key] for key in keys) for one in figures] == [
        ("a_b", 2.0, 1.0, 3.0, None),
        ("raced", 2.0, 1.0, 4.0, 2.0),
        ("took", 2.0, 1.0, 3.0, None),
        ("unknown", None, None, None, None),
    ]
    common.show(figures[:2])
    assert capsys.readouterr().out == "a_b: 2 points [1, 3] (why)\nraced: 2 times [1, 4], ratio 2.00\n"
    options = Namespace(json=tmp_path / "out.json", quick=True)
    common.write(options, figures, seed=3)
    written = json.loads(options.json.read_text())
    assert written["figures"] == figures
    assert written["setting"].items() >= {"quick": True, "seed": 3}.items()
