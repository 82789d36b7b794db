"""What an API key may do: scopes, which of them a role has, and the one that each route needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, get_args

from surefoot.errors import ScopeError

KeyScope = Literal["chat", "score", "read", "label", "import", "monitor", "manage"]
"""chat: generate; score: score and verify solutions; read: projects, traces, exports and runs; label: label
items and settle disagreements; import: add records to a project; monitor: the record of requests, and
metrics; manage: projects, members, accounts and keys."""

SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)

ROLE_SCOPES: Final[Mapping[str, frozenset[KeyScope]]] = MappingProxyType(
    {
        "client": frozenset(["chat", "score"]),
        "viewer": frozenset(["read", "monitor"]),
        "annotator": frozenset(["read", "label"]),
        "admin": frozenset(SCOPES),
    }
)
"""What keys of a role may do unless they are given less."""

_PROJECT = "/projects/{project_id:number}"
_ITEM = f"{_PROJECT}/items/{{item_id:number}}"

ROUTES: Final[Mapping[KeyScope | None, tuple[str, ...]]] = MappingProxyType(
    {
        "chat": (
            "POST /v1/chat/completions",
            "POST /v1/completions",
            "POST /v1/responses",
            "POST /v1/messages",
            "GET /v1/held/{number:int}",
        ),
        # with `resample`, /v1/verify needs "chat", too
        "score": ("POST /v1/score", "POST /v1/verify"),
        "read": (
            "GET /projects",
            f"GET {_PROJECT}",
            f"GET {_PROJECT}/settings",
            f"GET {_PROJECT}/instructions",
            f"GET {_PROJECT}/queue",
            f"GET {_PROJECT}/agreement",
            f"GET {_PROJECT}/adjudicate",
            f"GET {_PROJECT}/adjudicate/{{item_id:number}}",
            f"GET {_PROJECT}/flags",
            f"GET {_PROJECT}/files",
            f"GET {_PROJECT}/export/{{kind}}.jsonl",
            f"GET {_PROJECT}/formats",
            f"GET {_PROJECT}/formats/{{name}}",
            f"GET {_PROJECT}/traces",
            f"GET {_PROJECT}/trace",
            f"GET {_PROJECT}/problems",
            f"GET {_PROJECT}/problem",
            "GET /trees",
            "GET /tree-list",
            "GET /tree",
            "GET /runs",
            "GET /run",
        ),
        "label": (
            f"GET {_PROJECT}/annotate",
            f"GET {_ITEM}",
            f"POST {_ITEM}/label",
            f"POST {_ITEM}/alternatives",
            f"POST {_ITEM}/undo",
            f"POST {_ITEM}/skip",
            f"POST {_ITEM}/comment",
            f"POST {_PROJECT}/adjudicate/{{item_id:number}}",
            f"POST {_PROJECT}/flags/{{comment_id:number}}",
        ),
        "import": (f"POST {_PROJECT}/files", f"POST {_PROJECT}/formats", "POST /requests/import"),
        "monitor": (
            "GET /metrics",
            "GET /monitor",
            "GET /requests",
            "GET /request",
            "GET /request-tree",
            "GET /held",
        ),
        "manage": (
            "POST /projects",
            f"POST {_PROJECT}/settings",
            f"POST {_PROJECT}/members",
            f"POST {_PROJECT}/queue",
            "GET /people",
            "POST /held/{number:number}",
            "POST /people",
            "POST /people/{user_id:number}",
            "GET /keys",
            "POST /keys",
            "POST /keys/{key_id:number}",
        ),
        None: (  # for every key
            "GET /v1/models",
            "GET /v1/models/{model:path}",
            "GET /health",
            "GET /ready",
            "GET /openapi.json",
            "* /v1/{path:path}",  # errors alone
            "GET /",
            "GET /sign-in",
            "POST /sign-in",
            "GET /sign-in/provider",
            "GET /sign-in/callback",
            "GET /sign-out/provider",
            "POST /sign-out",
        ),
    }
)
"""The scope of each route, by method and path; a JSON twin (``.json``) has that of its page."""

_BY_ROUTE: Final = {route: scope for scope, routes in ROUTES.items() for route in routes}


def scope_of(method: str, path: str) -> KeyScope | None:
    """The scope that a route needs; ``None`` = any key will do. Raises ``LookupError`` for an unknown route.

    ``path`` is that of the route, with the names of its parameters.
    """
    method = "GET" if method == "HEAD" else method
    path = path.removesuffix(".json") if path != "/openapi.json" else path
    for route in (f"{method} {path}", f"* {path}"):
        if route in _BY_ROUTE:
            return _BY_ROUTE[route]
    raise LookupError(
        f"no scope is declared for {method} {path}; add it to surefoot.server.gateway.scopes.ROUTES"
    )


def require_scope(name: str, scopes: Sequence[KeyScope] | None, needed: KeyScope | None) -> None:
    """Raise ``ScopeError`` unless the key called ``name`` has the scope; ``scopes`` = ``None``: every one.

    What its role allows is checked apart from it.
    """
    if needed is not None and scopes is not None and needed not in scopes:
        raise ScopeError(f"key {name!r} lacks the scope '{needed}'; it has {', '.join(scopes)}")
