"""A project to look at: labels of every source, requests of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from annotation_site import SCRIPT, Browser, Room, add_person, open_room, text_trace

from surefoot.records import Evidence, Problem, StepLabel, StepScores, Trace
from surefoot.server import Database, GatewayCandidate, GatewayRecord, PageSettings

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class Inspection:
    """The room, a viewer of its project, a second project, and what was put in."""

    room: Room
    viewer: Browser
    other: int
    """Project of which the viewer is no member."""
    traces: list[Trace]
    foreign: Trace
    """A trace of the other project alone."""

    @property
    def db(self) -> Database:
        return self.room.db

    @property
    def base(self) -> str:
        return f"/projects/{self.room.project}"


def open_inspection(folder: Path, **settings: Any) -> Inspection:
    """A server with pages to look at. ``vic`` is a viewer of the project, ``tom`` of the whole server."""
    room = open_room(folder, settings=PageSettings(**settings))
    db = room.db
    vic = add_person(db, "vic", "annotator").id
    add_person(db, "tom", "viewer")
    db.projects.set_member(room.project, vic, "viewer")
    other = db.projects.create("Other").id
    problem = Problem(text="of another project")
    foreign = text_trace(problem, "theirs", policy="three")
    db.traces.add_problems(other, [problem])
    db.traces.add_traces(other, [foreign])
    traces = sorted(db.export.records(room.project, "traces"), key=lambda one: one.policy or "z")
    return Inspection(room=room, viewer=room.browser("vic"), other=other, traces=traces, foreign=foreign)


def add_labels(found: Inspection) -> None:
    """To the second solution: two people who disagree, trials and a judge."""
    trace = found.traces[1].id

    def label(step: int, value: float | None, source: str, **more: Any) -> StepLabel:
        fields = {"kind": "correctness", "evidence": Evidence(), "created": NOON}
        return StepLabel(trace_id=trace, step=step, value=value, source=source, **{**fields, **more})

    trials = Evidence(successes=0, trials=8, interval=(0.0, 0.32))
    judge = Evidence(rater="judge-1", message=f"because {SCRIPT}")
    found.db.labels.import_labels(
        found.room.project,
        [
            label(0, 1, "human", evidence=Evidence(rater="rater-a")),
            label(1, -1, "human", evidence=Evidence(rater="rater-a")),
            label(1, 1, "human", evidence=Evidence(rater="rater-b")),
            label(2, 0.0, "monte-carlo", kind="value", evidence=trials),
            label(1, -1, "judge", evidence=judge),
            label(2, None, "judge", reason="cannot tell", evidence=Evidence(rater="judge-1")),
        ],
    )


def add_request(db: Database, request_id: str = "req-1", **fields: Any) -> None:
    """One request with a chosen and a rejected candidate."""
    problem = Problem(text=f"Ask {SCRIPT}")
    good, bad = text_trace(problem, "yes"), text_trace(problem, "no", SCRIPT)
    candidates = (
        GatewayCandidate(
            trace=bad,
            chosen=False,
            score=0.1,
            scores=StepScores(trace_id=bad.id, scorer="prm", scores=(0.1, 0.7)),
            reason="step 1 below 0.5",
        ),
        GatewayCandidate(trace=good, chosen=True, score=0.9),
    )
    about = {
        "request_id": request_id,
        "created": NOON,
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "strategy": "best-of-n:n=2",
        "status": 200,
        "latency_ms": 12.5,
        "problem": problem,
        "candidates": candidates,
    }
    db.gateway.write_all([GatewayRecord(**{**about, **fields})])
