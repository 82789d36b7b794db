"""The reference set of contents on the pages of two runs: ``tests/data/content.jsonl``, one case a line.

A case has a name, where it stands (a step of a solution, a message, a tool's result, the arguments of a call,
or an answer), its text, elements that its box has, and elements that it never has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from annotation_site import Room, open_room, text_trace

from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import segment_trace

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/content.jsonl").read_text("utf-8").splitlines()
]


def cases_in(*places: str) -> list[dict[str, Any]]:
    """The cases of some places, in order."""
    return [case for case in CASES if case["in"] in places]


def open_contents(folder: Path) -> tuple[Room, dict[str, str]]:
    """A project with the cases, and the addresses of its two runs."""
    room = open_room(folder, wrong=False)
    (answer,) = cases_in("answer")
    task = Problem(text=r"Compute $\begin{pmatrix}1&2\\3&4\end{pmatrix}^{-1}$; it costs \$5.", answer="1")
    talk = Problem(text="Say it all.", answer="1")
    solution = text_trace(task, *(case["text"] for case in cases_in("solution")), answer=answer["text"])
    messages = [Message(role="user", content=talk.text)]
    for number, case in enumerate(cases_in("message", "result", "call")):
        call = ToolCall(id=f"c{number}", name="act", arguments=case["text"] if case["in"] == "call" else "{}")
        if case["in"] == "message":
            messages.append(Message(role="assistant", content=case["text"]))
            continue
        result = case["text"] if case["in"] == "result" else "ok"
        messages.append(Message(role="assistant", content=case["name"], tool_calls=(call,)))
        messages.append(Message(role="tool", content=result, tool_call_id=call.id))
    run = segment_trace(Trace(problem_id=talk.id, messages=tuple(messages)), granularity="message")
    room.db.traces.add_problems(room.project, [task, talk])
    room.db.traces.add_traces(room.project, [solution, run])
    address = f"/projects/{room.project}/run?id="
    return room, {"solution": address + solution.id, "run": address + run.id}
