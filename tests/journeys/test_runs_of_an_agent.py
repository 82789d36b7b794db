"""The guide from a folder of runs to labels: its commands in their order, and the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from shutil import copytree

from command_line import run

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/runs-of-an-agent.md").read_text("utf-8")
BLOCK = re.compile(r"^```(bash|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_of_runs(monkeypatch, tmp_path):
    copytree(ROOT / "examples/runs", tmp_path / "examples/runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert run("inspect").status == 1, "no session of an agent on this machine"
    sessions = tmp_path / "home/.claude/projects/-home-ann-report"
    copytree(tmp_path / "examples/runs/report", sessions)
    printed = ""
    compared = 0
    for language, block in BLOCK.findall(GUIDE):
        if language == "bash":
            printed = ""
            for line in block.splitlines():
                ended = run(*shlex.split(line)[1:])
                assert ended.status == 0, ended.err
                printed += ended.out + ended.err
        else:
            for line in block.splitlines():
                assert line.removesuffix("…").strip() in printed
                compared += 1
    assert compared > 20
    assert str(sessions / "session.jsonl") in run("inspect").out
