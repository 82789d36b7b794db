"""Projects (their home, settings, members and queue), the accounts and keys of the server, and signing in.

A person signs in with a personal link, where no sign-in proxy does it. The link's token is
behind its ``#``: a script puts it into the form, or its owner pastes it. The cookie of a session, which
scripts cannot read, is new at each sign-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from surefoot.errors import StoreError
from surefoot.labelling.queueing import QueueCandidate, priorities
from surefoot.server.pages.page import Page, protocol_with, proxied_user
from surefoot.server.pages.render import HEADERS
from surefoot.server.permissions import Role
from surefoot.server.store.accounts import QueuePolicy
from surefoot.server.store.database import Database
from surefoot.server.store.traces import RunFilter

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
_BATCH = 500


def start(page: Page) -> Response:
    """The front page is the home of the visitor's first project."""
    project = page.first_place()
    address = "/projects" if project is None else f"/projects/{project.id}"
    return RedirectResponse(page.root + address, status_code=303, headers=HEADERS)


def project_list(page: Page) -> Response:
    """The projects that the visitor may open; all of them for an administrator."""
    projects = [{"id": project.id, "name": project.name, "role": role} for project, role in page.projects()]
    return page.show("projects.html", {"projects": projects})


def create(page: Page) -> Response:
    """A new project, with its creator as administrator."""
    project = page.db.projects.create(page.form.text("name", most=200))
    if page.actor.user_id is not None:
        page.db.projects.set_member(project.id, page.actor.user_id, "admin")
    page.audit("project created", project=project.id, name=project.name)
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


def settings_page(page: Page) -> Response:
    """Protocol, order of the queue, instructions and members."""
    data = {
        "project": page.project,
        "scorers": page.db.traces.scorers(page.id),
        "members": page.db.projects.members(page.id),
    }
    return page.show("settings.html", data, roles=ROLES, endings=_ENDINGS, policies=POLICIES)


def change(page: Page) -> Response:
    """Change name, protocol and instructions, unless they have changed since the form was loaded."""
    changed = page.db.projects.update(
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
            lease_seconds=page.form.whole("lease_minutes") * 60,
            retention_days=int(page.form.number("retention_days") or 0) or None,
        ),
        archived=page.form.ticked("archived"),
    )
    page.audit("settings", version=changed.version)
    return page.done(f"/projects/{page.id}/settings", {"project": changed})


def set_member(page: Page) -> Response:
    """Add a user to the project by name, or change their membership."""
    user = page.db.users.by_name(page.form.text("name", most=200))
    role, active = page.form.choice("role", ROLES), not page.form.ticked("inactive")
    member = page.db.projects.set_member(page.id, user.id, role, active)
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


def sign_in_page(page: Page) -> Response:
    """The form for a personal link; whoever comes through a sign-in proxy is signed in already."""
    to = _local_path(page.request.query_params.get("next", ""))
    return page.done(to) if proxied_user(page.request, page.settings) else _sign_in_form(page, to)


def sign_in(page: Page) -> Response:
    """Check the personal link, and open a new session; one that the browser had before ends."""
    if page.settings.trusted_user_header is not None:
        raise HTTPException(403, "personal links are turned off here; sign in through the proxy")
    to = _local_path(page.form.text("next", default="", most=2000))
    user = page.db.users.by_link(page.form.text("link", most=1000).rpartition("#")[2])
    if user is None:
        return _sign_in_form(page, to, failed=True)
    lifetime = timedelta(hours=page.settings.session_hours)
    page.db.users.end_session(page.session)
    token = page.db.users.open_session(user.id, lifetime=lifetime)
    page.audit("sign-in", user=user.name)
    response = page.done(to)
    page.pages.set_session(response, token, lifetime.total_seconds())
    return response


def sign_out(page: Page) -> Response:
    """End the session on the server as well."""
    page.db.users.end_session(page.session)
    response = page.done("/sign-in")
    page.pages.set_session(response, "", 0)
    return response


def personal_link(db: Database, user_id: int) -> str:
    """The path of a new personal link, at which its owner signs in; the link before ends.

    Browsers send what stands behind ``#`` to no server, so neither a log nor a referrer has the token.
    """
    return f"/sign-in#{db.users.new_link(user_id)}"


def _local_path(to: str) -> str:
    """A path on this server to go to after signing in; anything else becomes the front page."""
    fine = to.startswith("/") and not to.startswith("//") and "\\" not in to and to.isprintable()
    return to if fine else "/"


def _sign_in_form(page: Page, to: str, *, failed: bool = False) -> Response:
    data = {"failed": failed, "links": page.settings.trusted_user_header is None}
    return page.show("sign_in.html", data, status=401 if failed else 200, next=to)
