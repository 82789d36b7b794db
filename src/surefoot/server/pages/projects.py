"""Projects: the list, and one project's overview, settings and members."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from surefoot.server.pages.access import (
    AdminPlace,
    MemberPlace,
    SignedIn,
    SiteAdmin,
    Visitor,
    pages_of,
    visible_projects,
)
from surefoot.server.pages.forms import CheckedForm, protocol_of
from surefoot.server.pages.render import HEADERS, done, show, twin
from surefoot.server.store.accounts import Project, Role
from surefoot.server.store.database import Database

router = APIRouter()

MEMBER_ROLES: tuple[Role, ...] = ("annotator", "admin", "viewer")


@router.get("/")
def start(request: Request) -> Response:
    """The front page is the list of projects."""
    return RedirectResponse(
        request.scope.get("root_path", "") + "/projects", status_code=303, headers=HEADERS
    )


@twin(router, "/projects")
def project_list(request: Request, visitor: SignedIn) -> Response:
    """The projects that the visitor may open; all of them for an administrator."""
    db = pages_of(request).db
    data = {"projects": [_summary(db, visitor, *entry) for entry in visible_projects(request, visitor)]}
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
def overview(request: Request, place: MemberPlace) -> Response:
    """Progress of a project; annotators see only their own pace."""
    db = place.db
    everyone, visitor = place.role in ("admin", "viewer"), place.visitor.user_id
    users = None if everyone else [] if visitor is None else [visitor]
    progress = db.assignments.progress(place.id, users)
    data = {
        "project": {"id": place.id, "name": place.project.name, "archived": place.project.archived},
        "role": place.role,
        "progress": progress,
    }
    return show(request, place, "project.html", data)


@twin(router, "/projects/{project_id:number}/settings")
def settings_page(request: Request, place: AdminPlace) -> Response:
    """Protocol, instructions, members, and the log of changes."""
    db = place.db
    users = {user.id: user.name for user in db.users.list()}
    data = {
        "project": place.project,
        "members": db.projects.members(place.id),
        "audit": [
            {"created": e.created, "by": users.get(e.user_id or 0), "action": e.action, "detail": e.detail}
            for e in db.projects.audit_log(place.id, limit=30)
        ],
    }
    return show(request, place, "settings.html", data, extra={"roles": MEMBER_ROLES})


@router.post("/projects/{project_id:number}/settings")
def change(request: Request, place: AdminPlace, form: CheckedForm) -> Response:
    """Change name, protocol and instructions, unless they have changed since the form was loaded."""
    db = place.db
    changed = db.projects.update(
        place.id,
        form.whole("version"),
        name=form.text("name", most=200),
        instructions=form.text("instructions", default="", most=200_000),
        protocol=protocol_of(form, place.project.protocol),
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


def _summary(db: Database, visitor: Visitor, project: Project, role: Role) -> dict[str, Any]:
    progress = db.assignments.progress(project.id, users=())
    member = visitor.user_id is not None and db.projects.member(project.id, visitor.user_id) is not None
    return {
        "id": project.id,
        "name": project.name,
        "role": role,
        "member": member,
        "needed": progress.needed,
        "done": progress.done,
    }
