"""Write the pictures of the guide "my agent fails": real runs on the pages, and real output of commands.

    PYTHONPATH=. python tests/support/write_guide_pictures.py RUNS    # docs/images

The pages show the ten runs of the package's preview with the labels of people and the verdicts of the rules.
RUNS is AgentProcessBench's ``hotpotqa.jsonl`` (MIT): several runs of each task, to choose among.
Needs Playwright and a Chromium on the path.
"""

from __future__ import annotations

import html
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from annotation_site import open_room
from browsing import WIDE, looked_at, served
from command_line import run
from playwright.sync_api import Browser
from real_browser import chromium
from write_pictures import IMAGES, write_picture

import surefoot.cli
from surefoot.io import read_records
from surefoot.records import Problem, StepLabel, Trace

REAL = Path(surefoot.cli.__file__).parent / "real" / "agent-runs.jsonl"
ASKED = (
    '{"hook_event_name": "PreToolUse", "permission_mode": "default", "tool_name": "Bash", '
    '"tool_input": {"command": "git push origin main"}}'
)
TERMINAL = """<!doctype html><style>
body {{margin: 0; background: #10151c; color: #d7dde5; font: 15px/1.45 "DejaVu Sans Mono", monospace}}
pre {{margin: 0; padding: 18px 22px; white-space: pre-wrap}} b {{color: #7fd1ff; font-weight: 600}}
</style><pre>{text}</pre>"""


def write_terminal(browser: Browser, path: Path, *commands: tuple[str, str]) -> None:
    """Commands and what they printed."""
    text = "\n\n".join(f"<b>$ {html.escape(said)}</b>\n{html.escape(out.strip())}" for said, out in commands)
    page = browser.new_page(viewport={"width": 860, "height": 100})
    page.set_content(TERMINAL.format(text=text))
    write_picture(page, 860, 100, path)
    page.close()


def main() -> None:
    """All pictures of the guide."""
    several = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        for source, out in ((REAL, "mine"), (several, "several")):
            assert run("import", source, "--out", out).status == 0
        rules = ("label", "mine/traces.jsonl", "verify:rules=tool-calls", "--problems", "mine/problems.jsonl")
        assert run(*rules, "--out", "rules.jsonl").status == 0
        room = open_room(folder, wrong=False)
        db = room.db
        project = db.projects.create("Agents that search").id
        db.projects.set_member(project, room.ids["admin"], "admin")
        traces = list(read_records("mine/traces.jsonl", Trace))
        db.traces.add_problems(project, list(read_records("mine/problems.jsonl", Problem)))
        db.traces.add_traces(project, traces)
        for file in ("mine/labels.jsonl", "rules.jsonl"):
            db.labels.import_labels(project, list(read_records(file, StepLabel)))
        shown = next(trace for trace in traces if trace.id.endswith(":21:4"))  # a call as text
        views = {
            "guide-runs": ("admin", f"/projects/{project}/runs"),
            "guide-run": ("admin", f"/projects/{project}/run?id={shown.id}"),
        }
        chosen = run("select", "several/traces.jsonl", "--rule", "shortest", "--out", "chosen.jsonl")
        assert chosen.status == 0
        with served(room.app) as address, chromium() as browser:
            for view, page in looked_at((address, views, browser), *WIDE, "light"):
                write_picture(page, WIDE[1], WIDE[2], IMAGES / f"{view}.png")
            write_terminal(
                browser,
                IMAGES / "guide-select.png",
                ("surefoot select runs/ --rule shortest --out chosen.jsonl", chosen.out + chosen.err),
            )
            asked = run("guard", "hook", "git", stdin=ASKED)
            write_terminal(
                browser, IMAGES / "guide-ask.png", (f"echo '{ASKED}' | surefoot guard hook git", asked.out)
            )
        db.close()


if __name__ == "__main__":
    main()
