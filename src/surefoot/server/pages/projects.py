"""Projects (the list, and one project's overview, settings and members), and the accounts of the server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from surefoot.errors import StoreError
from surefoot.server.pages.access import (
    AdminPlace,
    MemberPlace,
    SignedIn,
    SiteAdmin,
    Visitor,
    pages_of,
    visible_projects,
)
from surefoot.server.pages.forms import CheckedForm, Form, protocol_with
from surefoot.server.pages.render import HEADERS, done, show, twin
from surefoot.server.store.accounts import Project, Role, User
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
        protocol=protocol_with(
            place.project.protocol,
            show_answer=form.ticked("show_answer"),
            annotators=form.whole("annotators"),
            values=[value for value in (-1, 0, 1) if form.ticked(f"value{value}")],
            screening_pass=form.number("screening_pass") or 0.0,
            lease_seconds=form.whole("lease_minutes") * 60,
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


ROLES: tuple[Role, ...] = ("annotator", "viewer", "admin")


@twin(router, "/people")
def people(request: Request, visitor: SiteAdmin) -> Response:
    """All accounts."""
    pages = pages_of(request)
    data = {"users": [_account(user) for user in pages.db.users.list()]}
    extra = {"roles": ROLES, "proxied": pages.settings.trusted_user_header is not None}
    return show(request, visitor, "people.html", data, extra=extra)


@router.post("/people")
def create_account(request: Request, visitor: SiteAdmin, form: CheckedForm) -> Response:
    """A new account; behind a sign-in proxy the password is optional."""
    pages, db = pages_of(request), pages_of(request).db
    without = pages.settings.trusted_user_header is not None and not form.data.get("password")
    password = None if without else _password(form)
    user = db.users.create(form.text("name", most=200), password, roles=(form.choice("role", ROLES),))
    db.projects.audit("account created", visitor.user_id, name=user.name)
    return done(request, "/people", {"user": _account(user)})


@router.post("/people/{user_id:number}")
def change_account(request: Request, visitor: SiteAdmin, user_id: int, form: CheckedForm) -> Response:
    """Set a password or a role, close or open the account; each ends the user's sessions."""
    db = pages_of(request).db
    user, what = db.users.get(user_id), form.text("what")
    if user.id == visitor.user_id and what != "password":
        raise StoreError(
            "you cannot change your own role or close your own account; ask another administrator"
        )
    if what == "password":
        db.users.set_password(user_id, _password(form))
    elif what == "role":
        db.users.set_roles(user_id, (form.choice("role", ROLES),))
    elif what in ("close", "open"):
        db.users.set_active(user_id, what == "open")
    else:
        raise StoreError("'what' must be password, role, close or open")
    db.projects.audit(f"account {what}", visitor.user_id, name=user.name)
    return done(request, "/people", {"user": _account(db.users.get(user_id))})


def _account(user: User) -> dict[str, object]:
    return {**vars(user), "roles": sorted(user.roles)}


def _password(form: Form) -> str:
    password = str(form.data.get("password", ""))
    if not 8 <= len(password) <= 1000:
        raise StoreError("'password' must have 8 to 1000 characters")
    return password
