"""Projects (their home, settings, members and queue), and the accounts and keys of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from surefoot.errors import StoreError
from surefoot.labelling.queueing import Priorities, QueueCandidate, QueueRule, priorities
from surefoot.protocols import ProblemTrace
from surefoot.server.pages.access import (
    AdminPlace,
    MemberPlace,
    SignedIn,
    SiteAdmin,
    Visitor,
    pages_of,
    personal_link,
    visible_projects,
)
from surefoot.server.pages.forms import CheckedForm, protocol_with
from surefoot.server.pages.render import HEADERS, done, last_place, show, twin
from surefoot.server.store.accounts import QueuePolicy, Role
from surefoot.server.store.database import Database
from surefoot.server.store.traces import RunFilter

router = APIRouter()

MEMBER_ROLES: tuple[Role, ...] = ("annotator", "admin", "viewer")
ROLES: tuple[Role, ...] = ("annotator", "viewer", "admin")
POLICIES: dict[QueuePolicy, str] = {
    "order": "As added",
    "random": "At random",
    "convincing-wrong": "Most convincing wrong answers first",
    "uncertainty": "Most uncertain position of the first error first",
    "disagreement": "Largest disagreement between scorers first",
}
_ENDINGS = {
    "first-error": "at the first wrong step",
    "every-step": "when every step has a label (agents recover)",
    "whole-solution": "with the first wrong step of the whole solution, shown at once",
}
_SAMPLES = 6
"""Runs of the sample."""
_BATCH = 500


@router.get("/")
def start(request: Request, visitor: SignedIn) -> Response:
    """The front page is the home of the project opened last."""
    project = last_place(request, visitor)
    address = "/projects" if project is None else f"/projects/{project.id}"
    return RedirectResponse(request.scope.get("root_path", "") + address, status_code=303, headers=HEADERS)


@twin(router, "/projects")
def project_list(request: Request, visitor: SignedIn) -> Response:
    """The projects that the visitor may open; all of them for an administrator."""
    projects = [
        {"id": project.id, "name": project.name, "role": role}
        for project, role in visible_projects(request, visitor)
    ]
    data = {"projects": projects}
    return show(request, visitor, "projects.html", data)


@router.post("/projects")
def create(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """A new project, with its creator as administrator."""
    db = pages_of(request).db
    project = db.projects.create(form.text("name", most=200))
    if visitor.user_id is not None:
        db.projects.set_member(project.id, visitor.user_id, "admin")
    db.projects.audit("project created", visitor.user_id, project.id, name=project.name)
    return done(request, f"/projects/{project.id}/settings", {"project": project})


@twin(router, "/projects/{project_id:number}")
def home(request: Request, place: MemberPlace) -> Response:
    """What waits for the visitor in a project; annotators go on to their work."""
    if place.role == "annotator":
        return done(request, f"/projects/{place.id}/label")
    progress = place.db.assignments.progress(place.id)
    data = {
        "project": {"id": place.id, "name": place.project.name, "archived": place.project.archived},
        "role": place.role,
        "progress": progress,
        "left": progress.needed - progress.done,
        "runs": place.db.traces.facets(place.id, RunFilter())[0],
    }
    return show(request, place, "home.html", data)


@router.post("/projects/{project_id:number}/sample")
def load_sample(request: Request, place: AdminPlace, form: CheckedForm) -> Response:  # noqa: ARG001
    """Solutions of the lab's scripted solver, which makes mistakes, with the labels of the lab's checker."""
    from surefoot.answers import AnswerChecker, Grader
    from surefoot.lab import ExactLabeller, NoisySolver, generate_problems
    from surefoot.policies import sample_traces
    from surefoot.segment import Line

    db, problems = place.db, generate_problems(_SAMPLES, seed=0)
    with AnswerChecker("exact") as checker:
        sampled = sample_traces(
            NoisySolver(error_rate=0.1),
            problems,
            n=1,
            seed=0,
            segmenter=Line(),
            grader=Grader(checker=checker),
        )
        traces = [trace for (trace,) in asyncio.run(sampled)]
    items = [ProblemTrace(problem=one, trace=trace) for one, trace in zip(problems, traces, strict=True)]
    labels = asyncio.run(ExactLabeller(after_error="step").label(items))
    db.traces.add_problems(place.id, problems)
    db.traces.add_traces(place.id, traces)
    db.labels.import_labels(place.id, chain.from_iterable(labels))
    db.items.add_solutions(place.id)
    db.projects.audit("sample", place.visitor.user_id, place.id, runs=len(traces))
    return done(request, f"/projects/{place.id}/runs", {"runs": len(traces)})


@twin(router, "/projects/{project_id:number}/settings")
def settings_page(request: Request, place: AdminPlace) -> Response:
    """Protocol, order of the queue, instructions, members, and the log of changes."""
    db = place.db
    users = {user.id: user.name for user in db.users.list()}
    data = {
        "project": place.project,
        "scorers": db.traces.scorers(place.id),
        "members": db.projects.members(place.id),
        "audit": [
            {"created": e.created, "by": users.get(e.user_id or 0), "action": e.action, "detail": e.detail}
            for e in db.projects.audit_log(place.id, limit=30)
        ],
    }
    extra = {"roles": MEMBER_ROLES, "endings": _ENDINGS, "policies": POLICIES}
    return show(request, place, "settings.html", data, extra=extra)


@router.post("/projects/{project_id:number}/settings")
def change(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """Change name, protocol and instructions, unless they have changed since the form was loaded."""
    db = place.db
    changed = db.projects.update(
        place.id,
        form.whole("version"),
        name=form.text("name", most=200),
        instructions=form.text("instructions", default="", most=200_000),
        protocol=protocol_with(
            place.project.protocol,
            until=form.optional("until") or place.project.protocol.until,
            show_answer=form.ticked("show_answer"),
            annotators=form.whole("annotators"),
            values=[value for value in (-1, 0, 1) if form.ticked(f"value{value}")],
            screening_pass=form.number("screening_pass") or 0.0,
            lease_seconds=form.whole("lease_minutes") * 60,
            retention_days=int(form.number("retention_days") or 0) or None,
        ),
        archived=form.ticked("archived"),
    )
    db.projects.audit("settings", place.visitor.user_id, place.id, version=changed.version)
    return done(request, f"/projects/{place.id}/settings", {"project": changed})


@router.post("/projects/{project_id:number}/members")
def set_member(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """Add a user to the project by name, or change their membership."""
    db = place.db
    user = db.users.by_name(form.text("name", most=200))
    role, active = form.choice("role", MEMBER_ROLES), not form.ticked("inactive")
    member = db.projects.set_member(place.id, user.id, role, active)
    db.projects.audit("member", place.visitor.user_id, place.id, name=user.name, role=role, active=active)
    return done(request, f"/projects/{place.id}/settings", {"member": member})


@twin(router, "/people")
def people(request: Request, visitor: SiteAdmin) -> Response:
    """All accounts and API keys."""
    return _people(request, visitor)


def _people(request: Request, visitor: Visitor, **invited: str) -> Response:
    """The page; ``invited`` are a name and their personal link, which is shown only this once."""
    pages, db = pages_of(request), pages_of(request).db
    users = [{**vars(user), "roles": sorted(user.roles)} for user in db.users.list()]
    extra = {"roles": ROLES, "proxied": pages.settings.trusted_user_header is not None}
    extra["projects"] = db.projects.list()
    data = {"users": users, "keys": db.keys.list(), "invitation": invited or None}
    return show(request, visitor, "people.html", data, extra=extra)


@router.post("/people")
def invite(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """A new account, a member of a project if one is chosen, and its owner's personal link."""
    db = pages_of(request).db
    role = form.choice("role", ROLES)
    project = form.optional("project", most=15) and db.projects.get(form.whole("project"))
    user = db.users.create(form.text("name", most=200), roles=(role,))
    if project:
        db.projects.set_member(project.id, user.id, role)
    db.projects.audit("account created", visitor.user_id, name=user.name)
    if pages_of(request).settings.trusted_user_header is not None:  # its proxy signs them in
        return done(request, "/people", {"user": user})
    return _people(request, visitor, name=user.name, link=personal_link(db, user.id))


@router.post("/people/{user_id:number}")
def change_account(request: Request, visitor: SiteAdmin, user_id: int, form: CheckedForm) -> Response:
    """Set a role, close or open the account, or end its link with a new one."""
    db = pages_of(request).db
    user, what = db.users.get(user_id), form.text("what")
    if user.id == visitor.user_id:
        raise StoreError("you cannot change your own account; ask another administrator")
    if what == "role":
        db.users.set_roles(user_id, (form.choice("role", ROLES),))
    elif what in ("close", "open"):
        db.users.set_active(user_id, what == "open")
    elif what != "link":
        raise StoreError("'what' must be link, role, close or open")
    db.projects.audit(f"account {what}", visitor.user_id, name=user.name)
    if what == "link":
        return _people(request, visitor, name=user.name, link=personal_link(db, user_id))
    return done(request, "/people", {"user": db.users.get(user_id)})


@router.post("/projects/{project_id:number}/queue")
def choose_policy(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """Set the policy and the shares, and compute the priorities that the policy needs."""
    db = place.db
    policy, scorer = form.choice("policy", POLICIES), form.optional("scorer")
    protocol = protocol_with(
        place.project.protocol,
        queue=policy,
        random_share=form.number("random_share") or 0.0,
        control_share=form.number("control_share") or 0.0,
    )
    counts: dict[str, Any] | None = None
    if policy != "order" and policy != "random":
        ranked = recompute(db, place.id, policy, scorer=scorer)
        counts = {"ranked": len(ranked.values), "left_out": dict(ranked.left_out)}
    db.projects.update(place.id, form.whole("version"), protocol=protocol)
    db.projects.audit("queue", place.visitor.user_id, place.id, policy=policy, **(counts or {}))
    return done(request, f"/projects/{place.id}/settings", {"policy": policy, "priorities": counts})


def recompute(db: Database, project_id: int, rule: QueueRule, *, scorer: str | None = None) -> Priorities:
    """Compute and store the priorities of all normal items from the stored scores."""
    if scorer is not None and scorer not in db.traces.scorers(project_id):
        raise StoreError(f"'scorer': this project does not have scores by {scorer!r}")
    ranked = priorities(rule, list(_candidates(db, project_id)), scorer=scorer)
    db.items.set_priorities(project_id, rule, ranked.values)
    return ranked


def _candidates(db: Database, project_id: int) -> Iterator[QueueCandidate]:
    items = db.items.all(project_id, role="normal")
    while part := list(islice(items, _BATCH)):
        names = [item.trace_id for item in part]
        outcomes, scores = db.traces.outcomes_of(project_id, names), db.traces.scores_of(project_id, names)
        for item in part:
            yield QueueCandidate(
                item_id=item.id,
                outcomes=(outcomes[item.trace_id],),
                scores=({row.scorer: row.scores for row in scores[item.trace_id]},),
            )
