"""A small OpenID Connect provider without a network; the test says how it lies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from httpx2 import MockTransport, Request, Response
from joserfc import jwt
from joserfc.jwk import ECKey

ISSUER = "https://id.example/realm"
CLIENT = "labels"
REDIRECT = "https://labels.example/sign-in/callback"


def _new_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig", "alg": "ES256"})


@dataclass
class FakeProvider:
    """Answers what ``Provider`` asks; ``claims`` and ``token`` are added to what an honest one says."""

    subject: str = "u-1"
    claims: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    """In place of the ID token; ``none`` and ``hmac`` = signed by that algorithm."""
    header: dict[str, Any] = field(default_factory=dict)
    key: ECKey = field(default_factory=lambda: _new_key("one"))
    keys: list[dict[str, Any]] | None = None
    """In place of the published keys."""
    discovery: dict[str, Any] = field(default_factory=dict)
    user_info: dict[str, Any] | None = None
    down: bool = False
    asked: list[str] = field(default_factory=list)
    """Paths of the requests."""
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def transport(self) -> MockTransport:
        return MockTransport(self._answer)

    def sign_in(self, url: str) -> dict[str, str]:
        """What a user does at the provider: the query with which the browser comes back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert (query["response_type"], query["client_id"]) == ("code", CLIENT)
        assert (query["redirect_uri"], query["code_challenge_method"]) == (REDIRECT, "S256")
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return {"code": code, "state": query["state"]}

    def _answer(self, request: Request) -> Response:
        path = request.url.path.removeprefix("/realm")
        self.asked.append(path)
        if self.down:
            return Response(502, text="bad gateway")
        if path == "/.well-known/openid-configuration":
            endpoints = {
                "authorization_endpoint": "/auth",
                "token_endpoint": "/token",
                "jwks_uri": "/keys",
                "end_session_endpoint": "/end",
                **({"userinfo_endpoint": "/me"} if self.user_info is not None else {}),
            }
            found = {"issuer": ISSUER, **{name: ISSUER + end for name, end in endpoints.items()}}
            return Response(200, json={**found, **self.discovery})
        if path == "/keys":
            keys = self.keys if self.keys is not None else [self.key.as_dict(private=False)]
            return Response(200, json={"keys": keys})
        if path == "/token":
            return self._token(request)
        if path == "/me":
            return Response(200, json={"sub": self.subject, **(self.user_info or {})})
        return Response(404)

    def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        asked = self._codes.pop(form.get("code", ""), None)
        proof = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = _encoded(proof).decode()
        if asked is None or asked["code_challenge"] != challenge or form["redirect_uri"] != REDIRECT:
            return Response(400, json={"error": "invalid_grant"})
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": self.subject,
            "aud": CLIENT,
            "exp": now + 300,
            "iat": now,
            "nonce": asked["nonce"],
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        token = self.token
        if token is None:
            token = jwt.encode({"alg": "ES256", "kid": self.key.kid, **self.header}, claims, self.key)
        elif token == "none":
            token = _by_hand({"alg": "none"}, claims, lambda _: b"")
        elif token == "hmac":  # with the text of the public key, which everybody knows
            secret = self.key.as_pem(private=False)
            header = {"alg": "HS256", "kid": self.key.kid}
            token = _by_hand(header, claims, lambda text: hmac.digest(secret, text, "sha256"))
        return Response(200, json={"access_token": "a", "token_type": "Bearer", "id_token": token})


def _by_hand(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """A token as no library would make it."""
    text = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    return (text + b"." + _encoded(sign(text))).decode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
