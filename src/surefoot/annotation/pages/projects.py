"""Projects: the list, and one project's overview, settings and members."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from surefoot.annotation.database import Database, Project, Protocol, Role
from surefoot.annotation.pages.access import SignedIn, Visitor, enter, pages_of, require_admin
from surefoot.annotation.pages.forms import CheckedForm, protocol_of
from surefoot.annotation.pages.render import HEADERS, done, show, twin
from surefoot.errors import StoreError

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
    """The visitor's projects; all of them for an administrator."""
    db = pages_of(request).db
    data = {"projects": [_summary(db, visitor, project) for project in _visible(db, visitor)]}
    return show(request, visitor, "projects.html", data)


@router.post("/projects")
def create(request: Request, visitor: SignedIn, form: CheckedForm) -> Response:
    """A new project, with its creator as administrator."""
    require_admin(visitor)
    db = pages_of(request).db
    protocol = Protocol(phase=1 if form.text("phase", default="2") == "1" else 2)
    project = db.projects.create(form.text("name", most=200), protocol=protocol)
    if visitor.user_id is not None:
        db.projects.set_member(project.id, visitor.user_id, "admin")
    db.projects.audit("project created", visitor.user_id, project.id, name=project.name)
    return done(request, f"/projects/{project.id}/settings", {"project": project})


@twin(router, "/projects/{project_id:int}")
def overview(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """Progress of a project; annotators see only their own pace."""
    place = enter(request, visitor, project_id)
    db = pages_of(request).db
    progress = db.assignments.progress(project_id)
    everyone = place.role in ("admin", "viewer")
    rows = [row for row in progress.annotators if everyone or row.user_id == visitor.user_id]
    data = {
        "project": {
            "id": project_id,
            "name": place.project.name,
            "phase": place.project.protocol.phase,
            "archived": place.project.archived,
        },
        "role": place.role,
        "progress": {
            "items": progress.items,
            "complete": progress.complete,
            "needed": progress.needed,
            "done": progress.done,
            "leased": progress.leased,
        },
        "annotators": rows,
    }
    return show(request, visitor, "project.html", data, place=place)


@twin(router, "/projects/{project_id:int}/settings")
def settings_page(request: Request, visitor: SignedIn, project_id: int) -> Response:
    """Protocol, instructions, members, and the log of changes."""
    place = enter(request, visitor, project_id, "admin")
    db = pages_of(request).db
    users = {user.id: user.name for user in db.users.list()}
    data = {
        "project": place.project,
        "members": db.projects.members(project_id),
        "audit": [
            {"created": e.created, "by": users.get(e.user_id or 0), "action": e.action, "detail": e.detail}
            for e in db.projects.audit_log(project_id, limit=30)
        ],
    }
    return show(request, visitor, "settings.html", data, place=place, extra={"roles": MEMBER_ROLES})


@router.post("/projects/{project_id:int}/settings")
def change(request: Request, visitor: SignedIn, project_id: int, form: CheckedForm) -> Response:
    """Change name, protocol and instructions, unless somebody changed them since the form was loaded."""
    place = enter(request, visitor, project_id, "admin")
    db = pages_of(request).db
    changed = db.projects.update(
        project_id,
        form.whole("version"),
        name=form.text("name", most=200),
        instructions=form.text("instructions", default="", most=200_000),
        protocol=protocol_of(form, place.project.protocol),
        archived=form.ticked("archived"),
    )
    db.projects.audit("settings", visitor.user_id, project_id, version=changed.version)
    return done(request, f"/projects/{project_id}/settings", {"project": changed})


@router.post("/projects/{project_id:int}/members")
def set_member(request: Request, visitor: SignedIn, project_id: int, form: CheckedForm) -> Response:
    """Add a user to the project by name, or change their membership."""
    enter(request, visitor, project_id, "admin")
    db = pages_of(request).db
    user = db.users.by_name(form.text("name", most=200))
    role, active = _role(form.text("role")), not form.ticked("inactive")
    member = db.projects.set_member(project_id, user.id, role, active)
    db.projects.audit("member", visitor.user_id, project_id, name=user.name, role=role, active=active)
    return done(request, f"/projects/{project_id}/settings", {"member": member})


def _role(text: str) -> Role:
    roles: tuple[Role, ...] = get_args(Role)
    for role in roles:
        if role == text and role in MEMBER_ROLES:
            return role
    raise StoreError(f"'role' must be one of {', '.join(MEMBER_ROLES)}")


def _visible(db: Database, visitor: Visitor) -> list[Project]:
    everything = visitor.user_id is None or "admin" in visitor.roles
    projects = db.projects.list() if everything else db.projects.list(visitor.user_id)
    return [one for one in projects if visitor.project_id in (None, one.id)]


def _summary(db: Database, visitor: Visitor, project: Project) -> dict[str, Any]:
    progress = db.assignments.progress(project.id)
    member = None if visitor.user_id is None else db.projects.member(project.id, visitor.user_id)
    return {
        "id": project.id,
        "name": project.name,
        "phase": project.protocol.phase,
        "role": member.role if member is not None else None,
        "needed": progress.needed,
        "done": progress.done,
    }
