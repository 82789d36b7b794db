"""The notebooks of the documentation run as they stand, and print what they say they print."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
from notebooks import FOLDER, as_markdown, executed, stored  # noqa: E402


def notebook(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))


def worded(text: str) -> str:
    """Text without figures, bars and spaces: training in other versions moves them."""
    return re.sub(r"[\d.▽%+-]+|\s+|first score below", "", text)


def test_agent_runs() -> None:
    shown = notebook("agent-runs")
    assert executed(shown) == stored(shown), "run python tools/notebooks.py"
    assert "chosen: run 2" in stored(shown)[-1]


@pytest.mark.slow
def test_reward_model() -> None:
    shown = notebook("reward-model")
    sampled, _, scored, report, curves = executed(shown)
    was_sampled, _, was_scored, was_report, was_curves = stored(shown)
    problem, was_problem = (text.partition(" traces written")[0] for text in (sampled, was_sampled))
    assert problem == was_problem, "run python tools/notebooks.py"
    assert worded(sampled) == worded(was_sampled)
    assert worded(scored) == worded(was_scored)
    rivals, were = (re.findall(r"than ([a-z ]+) \(", text) for text in (report, was_report))
    assert rivals == were != []
    assert worded(curves) == worded(was_curves)
    shares = {line[:28].strip(): list(map(int, re.findall(r"(\d+) %", line))) for line in curves.splitlines()}
    assert len(shares) == 3
    for name, of_size in shares.items():
        assert of_size[0] == shares["pass@N"][0], "one sample leaves no choice"
        assert all(map(int.__le__, of_size, shares["pass@N"])), f"{name} is above the ceiling"


def test_a_failed_command_is_raised() -> None:
    cell = {"cell_type": "code", "id": "a", "source": ["print(1)\n", "!exit 3"], "outputs": []}
    with pytest.raises(RuntimeError, match="exit 3"):
        executed({"cells": [cell]})


def test_a_notebook_as_a_page() -> None:
    output = {"name": "stdout", "output_type": "stream", "text": ["1\n"]}
    code = {"cell_type": "code", "id": "b", "source": ["print(1)"], "outputs": [output]}
    page = as_markdown({"cells": [{"cell_type": "markdown", "id": "a", "source": ["# One\n", "Two."]}, code]})
    assert page == "# One\nTwo.\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"
