"""Projects (their home, settings, members and queue), and the accounts and keys of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from starlette.responses import RedirectResponse, Response

from surefoot.errors import StoreError
from surefoot.labelling.queueing import QueueCandidate, priorities
from surefoot.protocols import ProblemTrace
from surefoot.server.pages.forms import protocol_with
from surefoot.server.pages.page import Page
from surefoot.server.pages.render import HEADERS
from surefoot.server.pages.session import personal_link
from surefoot.server.permissions import Role
from surefoot.server.store.accounts import QueuePolicy
from surefoot.server.store.database import Database
from surefoot.server.store.traces import RunFilter

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


def start(page: Page) -> Response:
    """The front page is the home of the project opened last."""
    project = page.last_place()
    address = "/projects" if project is None else f"/projects/{project.id}"
    return RedirectResponse(page.root + address, status_code=303, headers=HEADERS)


def project_list(page: Page) -> Response:
    """The projects that the visitor may open; all of them for an administrator."""
    projects = [{"id": project.id, "name": project.name, "role": role} for project, role in page.projects()]
    data = {"projects": projects}
    return page.show("projects.html", data)


def create(page: Page) -> Response:
    """A new project, with its creator as administrator."""
    db = page.db
    project = db.projects.create(page.form.text("name", most=200))
    if page.actor.user_id is not None:
        db.projects.set_member(project.id, page.actor.user_id, "admin")
    db.projects.audit("project created", page.actor.user_id, project.id, name=project.name)
    return page.done(f"/projects/{project.id}/settings", {"project": project})


def home(page: Page) -> Response:
    """The visitor's open tasks in a project; annotators are redirected to their work."""
    if page.role == "annotator":
        return page.done(f"/projects/{page.id}/label")
    progress = page.db.assignments.progress(page.id)
    data = {
        "project": {"id": page.id, "name": page.project.name, "archived": page.project.archived},
        "role": page.role,
        "progress": progress,
        "left": progress.needed - progress.done,
        "runs": page.db.traces.facets(page.id, RunFilter())[0],
    }
    return page.show("home.html", data)


def load_sample(page: Page) -> Response:
    """Solutions of the lab's scripted solver, which makes mistakes, with the labels of the lab's checker."""
    from surefoot.answers import AnswerChecker, Grader
    from surefoot.lab import ExactLabeller, NoisySolver, generate_problems
    from surefoot.policies import sample_traces
    from surefoot.segment import Line

    db, problems = page.db, generate_problems(_SAMPLES, seed=0)
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
    items = [ProblemTrace(problem=row, trace=trace) for row, trace in zip(problems, traces, strict=True)]
    labels = asyncio.run(ExactLabeller(after_error="step").label(items))
    db.traces.add_problems(page.id, problems)
    db.traces.add_traces(page.id, traces)
    db.labels.import_labels(page.id, chain.from_iterable(labels))
    db.items.add_solutions(page.id)
    page.audit("sample", runs=len(traces))
    return page.done(f"/projects/{page.id}/runs", {"runs": len(traces)})


def settings_page(page: Page) -> Response:
    """Protocol, order of the queue, instructions, members, and the log of changes."""
    db = page.db
    users = {user.id: user.name for user in db.users.list()}
    data = {
        "project": page.project,
        "scorers": db.traces.scorers(page.id),
        "members": db.projects.members(page.id),
        "audit": [
            {"created": e.created, "by": users.get(e.user_id or 0), "action": e.action, "detail": e.detail}
            for e in db.projects.audit_log(page.id, limit=30)
        ],
    }
    return page.show("settings.html", data, roles=MEMBER_ROLES, endings=_ENDINGS, policies=POLICIES)


def change(page: Page) -> Response:
    """Change name, protocol and instructions, unless they have changed since the form was loaded."""
    db = page.db
    changed = db.projects.update(
        page.id,
        page.form.whole("version"),
        name=page.form.text("name", most=200),
        instructions=page.form.text("instructions", default="", most=200_000),
        protocol=protocol_with(
            page.project.protocol,
            until=page.form.optional("until") or page.project.protocol.until,
            show_answer=page.form.ticked("show_answer"),
            annotators=page.form.whole("annotators"),
            values=[value for value in (-1, 0, 1) if page.form.ticked(f"value{value}")],
            known_first=page.form.natural("known_first"),
            known_pass=page.form.number("known_pass") or 0.0,
            lease_seconds=page.form.whole("lease_minutes") * 60,
            retention_days=int(page.form.number("retention_days") or 0) or None,
        ),
        archived=page.form.ticked("archived"),
    )
    page.audit("settings", version=changed.version)
    return page.done(f"/projects/{page.id}/settings", {"project": changed})


def set_member(page: Page) -> Response:
    """Add a user to the project by name, or change their membership."""
    db = page.db
    user = db.users.by_name(page.form.text("name", most=200))
    role, active = page.form.choice("role", MEMBER_ROLES), not page.form.ticked("inactive")
    member = db.projects.set_member(page.id, user.id, role, active)
    page.audit("member", name=user.name, role=role, active=active)
    return page.done(f"/projects/{page.id}/settings", {"member": member})


def people(page: Page, **invited: str) -> Response:
    """All accounts and API keys; ``invited`` are a name and their personal link, which is shown only this
    once."""
    db = page.db
    data = {"users": db.users.list(), "keys": db.keys.list(), "invitation": invited or None}
    return page.show(
        "people.html",
        data,
        roles=ROLES,
        proxied=page.settings.trusted_user_header is not None,
        projects=db.projects.list(),
    )


def invite(page: Page) -> Response:
    """A new account, a member of a project if one is chosen, and its owner's personal link."""
    db = page.db
    role = page.form.choice("role", ROLES)
    project = page.form.optional("project", most=15) and db.projects.get(page.form.whole("project"))
    user = db.users.create(page.form.text("name", most=200), role)
    if project:
        db.projects.set_member(project.id, user.id, role)
    page.audit("account created", name=user.name)
    if page.settings.trusted_user_header is not None:  # its proxy signs them in
        return page.done("/people", {"user": user})
    return people(page, name=user.name, link=personal_link(db, user.id))


def change_account(page: Page, user_id: int) -> Response:
    """Set a role, close or open the account, or end its link with a new one."""
    db = page.db
    user, what = db.users.get(user_id), page.form.text("what")
    if user.id == page.actor.user_id:
        raise StoreError("you cannot change your own account; ask another administrator")
    if what == "role":
        db.users.set_role(user_id, page.form.choice("role", ROLES))
    elif what in ("close", "open"):
        db.users.set_active(user_id, what == "open")
    elif what != "link":
        raise StoreError("'what' must be link, role, close or open")
    page.audit(f"account {what}", name=user.name)
    if what == "link":
        return people(page, name=user.name, link=personal_link(db, user_id))
    return page.done("/people", {"user": db.users.get(user_id)})


def choose_policy(page: Page) -> Response:
    """Set the policy and the shares, and compute the priorities that the policy needs."""
    db = page.db
    policy, scorer = page.form.choice("policy", POLICIES), page.form.optional("scorer")
    protocol = protocol_with(
        page.project.protocol,
        queue=policy,
        random_share=page.form.number("random_share") or 0.0,
        known_share=page.form.number("known_share") or 0.0,
    )
    counts: dict[str, Any] | None = None
    if policy == "order" or policy == "random":
        db.projects.update(page.id, page.form.whole("version"), protocol=protocol)
    else:
        if scorer is not None and scorer not in db.traces.scorers(page.id):
            raise StoreError(f"'scorer': this project does not have scores by {scorer!r}")
        ranked = priorities(policy, list(_candidates(db, page.id)), scorer=scorer)
        db.projects.update(page.id, page.form.whole("version"), protocol=protocol)
        db.items.set_priorities(page.id, ranked.values)
        counts = {"ranked": len(ranked.values), "left_out": dict(ranked.left_out)}
    page.audit("queue", policy=policy, **(counts or {}))
    return page.done(f"/projects/{page.id}/settings", {"policy": policy, "priorities": counts})


def _candidates(db: Database, project_id: int) -> Iterator[QueueCandidate]:
    items = iter(db.items.list(project_id, has_known=False))
    while part := list(islice(items, _BATCH)):
        names = [item.trace_id for item in part]
        outcomes, scores = db.traces.outcomes_of(project_id, names), db.traces.scores_of(project_id, names)
        for item in part:
            yield QueueCandidate(
                item_id=item.id,
                outcomes=(outcomes[item.trace_id],),
                scores=({row.scorer: row.scores for row in scores[item.trace_id]},),
            )
