"""An OpenID Connect provider, asked by the code flow with PKCE. Authlib speaks OAuth, joserfc reads tokens.

OpenID Connect Core 1.0, section 3.1, and Discovery 1.0; PKCE is RFC 7636, the issuer in the answer RFC 9207.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from surefoot.errors import SurefootError
from surefoot.extras import need
from surefoot.server.pages.settings import OidcSettings, require_web_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from authlib.integrations.httpx_client import OAuth2Client
    from httpx2 import BaseTransport
    from joserfc.jwk import KeySet

_LOG = logging.getLogger("surefoot.server")
_TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 3600.0
"""How long the discovery document and the keys are believed."""
_KEYS_AGAIN_S: Final = 60.0
"""A token with an unknown key makes the keys be fetched again, but not more often than this."""
_DOWN_S: Final = 5.0
"""How long a provider that did not answer is not asked again."""
_LEEWAY_S: Final = 60
"""How far the clocks may differ."""
_MOST_BYTES: Final = 1_000_000
_ALGORITHMS: Final = tuple(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
"""Signatures by the provider's private key; ``none``, and HMAC with a key that others may know, are none."""


class ProviderError(SurefootError):
    """The provider refused, or its answer is not valid: nobody is signed in."""


class ProviderDownError(ProviderError):
    """The provider does not answer, or not what a provider answers."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What one sign-in asked the provider, which its answer must fit."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> Question:
        """Of random texts that nobody can guess."""
        return cls(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(64),
        )


class Provider:
    """The provider of ``settings``, which must name one; ``redirect_uri`` is where it sends browsers back.

    ``transport`` carries the requests, by default over the network. Raises ``MissingExtraError`` and, for a
    secret that cannot be read, ``StoreError``.
    """

    def __init__(
        self,
        settings: OidcSettings,
        *,
        redirect_uri: str,
        transport: BaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        need("authlib", "signing in with a provider")
        self.settings, self.issuer = settings, settings.issuer or ""
        self._redirect_uri, self._transport, self._clock = redirect_uri, transport, clock
        self._secret = settings.secret()
        self._documents: dict[str, tuple[float, dict[str, Any]]] = {}
        self._down = float("-inf")

    def authorization_url(self, question: Question) -> str:
        """Where the browser goes to sign in. Raises ``ProviderDownError``."""
        with self._client() as client:
            url, _ = client.create_authorization_url(
                self._endpoint("authorization_endpoint"),
                state=question.state,
                nonce=question.nonce,
                code_verifier=question.verifier,
            )
        return str(url)

    def sign_out_url(self, to: str) -> str | None:
        """Where the browser goes to sign out there, and then comes back ``to`` here; ``None`` = nowhere."""
        if "end_session_endpoint" not in self._discovered():
            return None
        query = {"client_id": self.settings.client_id or "", "post_logout_redirect_uri": to}
        return f"{self._endpoint('end_session_endpoint')}?{urlencode(query)}"

    def claims(self, answer: Mapping[str, str], question: Question) -> dict[str, Any]:
        """What the provider says of the user, from the query with which the browser came back.

        Raises ``ProviderError``, in words for the user.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), question.state.encode()):
            raise ProviderError("the sign-in was begun in another window, or too long ago; sign in again")
        says_iss = self._discovered().get("authorization_response_iss_parameter_supported") is True
        if answer.get("iss", None if says_iss else self.issuer) != self.issuer:
            raise ProviderError("the answer comes from another identity provider")
        if "error" in answer:
            raise ProviderError(f"the identity provider refused: {answer['error'][:100]}")
        if not answer.get("code"):
            raise ProviderError("the identity provider sent no code")
        with self._client() as client:
            token = self._token(client, answer["code"], question)
            claims = self._verified(token, question)
            return {**self._user_info(client, claims["sub"]), **claims}

    def _authentication(self) -> str:
        """How the client proves itself to the token endpoint (Discovery, section 3: basic unless it says)."""
        if not self._secret:
            return "none"
        known = self._discovered().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return "client_secret_basic" if "client_secret_basic" in known else "client_secret_post"

    def _token(self, client: OAuth2Client, code: str, question: Question) -> dict[str, Any]:
        from authlib.integrations.base_client import OAuthError

        endpoint = self._endpoint("token_endpoint")
        try:
            client.token_endpoint_auth_method = self._authentication()
            with _talking(endpoint):
                token = client.fetch_token(endpoint, code=code, code_verifier=question.verifier)
        except OAuthError as error:
            _LOG.warning("the identity provider gave no token: %s", error)
            raise ProviderError("the identity provider does not accept the code; sign in again") from error
        if not isinstance(token, dict) or not isinstance(token.get("id_token"), str):
            raise ProviderError("the identity provider sent no ID token")
        return dict(token)

    def _verified(self, token: Mapping[str, Any], question: Question) -> dict[str, Any]:
        """The claims of the ID token, if this provider made it for this client and this sign-in."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        def decode(most_s: float) -> jwt.Token:
            return jwt.decode(token["id_token"], self._keys(most_s), algorithms=_ALGORITHMS)

        try:
            try:
                decoded = decode(_FRESH_S)
            except (JoseError, ValueError):  # the provider may have new keys
                decoded = decode(_KEYS_AGAIN_S)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id or ""},
                    "exp": {"essential": True},
                    "iat": {"essential": True},
                    "nonce": {"essential": True, "value": question.nonce},
                },
                params={"client_id": self.settings.client_id, "access_token": token.get("access_token")},
            )
            claims.validate(now=int(self._clock()), leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError) as error:
            _LOG.warning("the identity provider's token is not valid: %s", error)
            raise ProviderError(
                "the identity provider's answer is not valid; the server's log says why"
            ) from error
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise ProviderError("the identity provider's answer has no usable 'sub'")
        return dict(claims)

    def _user_info(self, client: OAuth2Client, subject: str) -> dict[str, Any]:
        """What the token leaves out; nothing if the provider does not say it as JSON."""
        if "userinfo_endpoint" not in self._discovered():
            return {}
        endpoint = self._endpoint("userinfo_endpoint")
        with _talking(endpoint):
            response = client.get(endpoint)
            response.raise_for_status()
            if "json" not in response.headers.get("content-type", ""):
                return {}
            said = response.json()
        if not isinstance(said, dict) or said.get("sub") != subject:  # section 5.3.2: not the same user
            raise ProviderError("the identity provider speaks of another user than its token")
        return said

    def _keys(self, most_s: float) -> KeySet:
        from joserfc.jwk import KeySet

        rows = self._document(self._endpoint("jwks_uri"), most_s).get("keys")
        rows = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
        usable = [one for one in rows if one.get("kty") in ("RSA", "EC") and one.get("use", "sig") == "sig"]
        return KeySet.import_key_set({"keys": usable})

    def _discovered(self) -> dict[str, Any]:
        found = self._document(f"{self.issuer.rstrip('/')}/.well-known/openid-configuration", _FRESH_S)
        if found.get("issuer") != self.issuer:
            raise ProviderDownError(f"the identity provider at {self.issuer} calls itself something else")
        return found

    def _endpoint(self, name: str) -> str:
        address = self._discovered().get(name)
        try:
            require_web_address(address if isinstance(address, str) else "")
        except ValueError as error:
            raise ProviderDownError(f"the identity provider has no usable '{name}'") from error
        return str(address)

    def _document(self, url: str, most_s: float) -> dict[str, Any]:
        """The JSON object at ``url``, at most so many seconds old."""
        fetched, document = self._documents.get(url, (float("-inf"), {}))
        if self._clock() - fetched < most_s:
            return document
        if self._clock() - self._down < _DOWN_S:  # nobody else waits for it
            raise ProviderDownError("the identity provider does not answer; try again in a moment")
        try:
            with self._client() as client, _talking(url):
                response = client.request("GET", url, withhold_token=True)
                response.raise_for_status()
                found = response.json()
        except ProviderDownError:
            self._down = self._clock()
            raise
        if not isinstance(found, dict) or len(response.content) > _MOST_BYTES:
            raise ProviderDownError("the identity provider does not answer as one")
        self._documents[url] = (self._clock(), found)
        return found

    def _client(self) -> OAuth2Client:
        from authlib.integrations.httpx_client import OAuth2Client

        return OAuth2Client(
            self.settings.client_id,
            self._secret,
            scope=" ".join(self.settings.scopes),
            redirect_uri=self._redirect_uri,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
            follow_redirects=False,
            transport=self._transport,
        )


@contextmanager
def _talking(url: str) -> Iterator[None]:
    """Turn what a request to ``url`` raises into ``ProviderDownError``."""
    from httpx2 import HTTPError, InvalidURL

    try:
        yield
    except (HTTPError, InvalidURL, ValueError) as error:
        _LOG.warning("the identity provider does not answer as one at %s: %s", url, error)
        raise ProviderDownError("the identity provider does not answer; try again in a moment") from error
