"""Every page with something on it that looks like work: for pictures, and for tests of how pages look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from annotation_site import Browser, Room, lease, text_trace
from inspection_site import Inspection, open_inspection
from screenshot_inspection import Views, inspected

from surefoot.records import Problem

_INSTRUCTIONS = """# Fractions

Judge **each step** as if it stood in a textbook.

* A slip of the pen is wrong.
* Repeating the problem is neutral.

<b>No HTML here.</b>"""


def open_shown(folder: Path, **settings: Any) -> tuple[Inspection, Views]:
    """A server with content on every page, and the pages by the names of their pictures."""
    found = open_inspection(folder, **settings)
    room = found.room
    room.db.projects.update(room.project, 1, instructions=_INSTRUCTIONS)
    views = {"sign-in": (None, "/sign-in"), **_labelled(room), **inspected(found)}
    return found, views


def _labelled(room: Room) -> Views:
    """Work of two annotators."""
    base, db = f"/projects/{room.project}", room.db
    _known_item(room)
    people = {name: room.browser(name) for name in ("ann", "ben")}
    for name, values in (("ben", (1, 0, 1, 1, -1, 1, 1)), ("ann", (1, 1, 1))):
        _label(people[name], base, values)
    current = str(people["ann"].follow(f"{base}/annotate").url.path)
    people["ann"].send(current, f"{current}/label", value="1", comment="Odd, but not wrong.")
    agent = next(
        item.id
        for item in db.items.list(room.project)
        if len(db.traces.trace(room.project, item.trace_id).messages)
    )
    lease(db, room.project, agent, room.ids["admin"])
    run_page = f"{base}/items/{agent}"
    admin = room.browser("admin")
    disputed = db.items.get(room.project, 1).trace_id
    admin.send(run_page, f"{run_page}/label", value="1")
    admin.send(
        f"{base}/settings",
        f"{base}/queue",
        policy="convincing-wrong",
        random_share="0.1",
        known_share="0.1",
    )
    return {
        "projects": ("admin", "/projects"),
        "project": ("admin", base),
        "annotate": ("ann", current),
        "agent": ("admin", run_page),
        "label": ("ann", f"{base}/label"),
        "agreement": ("admin", f"{base}/agreement"),
        "disagreements": ("admin", f"{base}/adjudicate"),
        "adjudicate": ("admin", f"{base}/run?id={disputed}&disagreement=1"),
        "settings": ("admin", f"{base}/settings"),
        "files": ("admin", f"{base}/files"),
        "people": ("admin", "/people"),
        "error": ("ann", f"{base}/settings"),
        "no-item": ("ben", f"{base}/annotate"),
    }


def _known_item(room: Room) -> None:
    problem = Problem(text="What is $7 \\cdot 8$?", answer="56")
    trace = text_trace(problem, "$7 \\cdot 8 = 54$.", "The answer is 54.")
    room.db.traces.add_problems(room.project, [problem])
    room.db.traces.add_traces(room.project, [trace])
    (made,) = room.db.items.add(room.project, [trace.id], known={trace.id: {0: -1}})
    for name, value in (("ann", -1), ("ben", -1)):
        lease(room.db, room.project, made, room.ids[name])
        page = f"/projects/{room.project}/items/{made}"
        room.browser(name).send(page, f"{page}/label", value=str(value), milliseconds="8200")


def _label(person: Browser, base: str, values: tuple[int, ...]) -> None:
    for number, value in enumerate(values):
        path = str(person.follow(f"{base}/annotate").url.path)
        time_taken = str(5200 + 1700 * number)
        answer = person.send(path, f"{path}/label", value=str(value), milliseconds=time_taken)
        assert answer.status_code == 303, answer.text
