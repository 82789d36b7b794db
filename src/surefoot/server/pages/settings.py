"""Settings of the pages and of signing in to them; quick to import, as the command line reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from surefoot.errors import StoreError
from surefoot.server.gateway.settings import Settings, is_loopback

PageRole = Literal["admin", "annotator", "viewer"]
"""What an account of the pages may do."""

SECRET_VARIABLE: Final = "SUREFOOT_OIDC_CLIENT_SECRET"


class OidcSettings(Settings):
    """Signing in with an OpenID Connect provider; its redirect URI is `PUBLIC-URL/sign-in/callback`."""

    issuer: str | None = Field(
        default=None, description="Address of the provider, as its discovery document says."
    )
    client_id: str | None = Field(default=None, description="What the provider calls this server.")
    secret_file: Path | None = Field(
        default=None,
        description="File with the client's secret, if it has one; otherwise $SUREFOOT_OIDC_CLIENT_SECRET.",
    )
    label: str = Field(default="single sign-on", min_length=1, description="What the button calls it.")
    scopes: tuple[str, ...] = Field(
        default=("openid", "profile", "email"), description="What the provider is asked for."
    )
    role: PageRole | None = Field(
        default=None,
        description="Role of accounts that are made at the first sign-in; if not given, none are made.",
    )
    roles_claim: str | None = Field(
        default=None,
        description="Claim that gives the roles at every sign-in, such as `groups` or `realm_access.roles`.",
    )
    role_values: tuple[str, ...] = Field(
        default=(), description="VALUE=ROLE of the claim; by default a role's name is its value."
    )
    match_email: bool = Field(
        default=False,
        description="Let a verified e-mail address open the account of that name, unless it is another's.",
    )

    @field_validator("issuer")
    @classmethod
    def _encrypted(cls, issuer: str | None) -> str | None:
        if issuer is not None:
            require_web_address(issuer)
        return issuer

    @field_validator("role_values")
    @classmethod
    def _known_roles(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        roles = get_args(PageRole)
        for value in values:
            if value.rpartition("=")[2] not in roles or not value.rpartition("=")[0]:
                raise ValueError(f"{value!r} is not VALUE=ROLE with a role of {', '.join(roles)}")
        return values

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.issuer is None) != (self.client_id is None):
            raise ValueError("'issuer' and 'client_id' need each other")
        if "openid" not in self.scopes:
            raise ValueError("'scopes' must contain openid")
        if self.role_values and self.roles_claim is None:
            raise ValueError("'role_values' needs 'roles_claim'")
        return self

    def secret(self) -> str | None:
        """The client's secret; ``None`` for a client without one. Raises ``StoreError``."""
        if self.secret_file is None:
            return os.environ.get(SECRET_VARIABLE)
        try:
            return self.secret_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.secret_file}: the client's secret cannot be read") from error

    @property
    def roles_by_value(self) -> dict[str, PageRole]:
        """The role that each value of the claim gives."""
        if not self.role_values:
            return {role: role for role in get_args(PageRole)}
        pairs = (value.rpartition("=") for value in self.role_values)
        return {value: next(one for one in get_args(PageRole) if one == role) for value, _, role in pairs}


class PageSettings(Settings):
    """How the pages are served, and what they may read beside the database."""

    secure: bool = Field(
        default=False, description="Send cookies over HTTPS only: behind a proxy that speaks it."
    )
    public_url: str | None = Field(
        default=None,
        description="Address of the pages for browsers, such as `https://labels.example`; with https, "
        "cookies travel over HTTPS only.",
    )
    passwords: bool = Field(
        default=True,
        description="Let people sign in with a password; to turn it off, name an identity provider.",
    )
    runs: Path | None = Field(
        default=None, description="Directory whose runs and saved trees the pages show."
    )
    max_form_bytes: int = Field(default=1_000_000, ge=1_000)
    max_upload_bytes: int = Field(default=64_000_000, ge=1_000)
    session_hours: float = Field(default=12.0, gt=0)
    attempts: int = Field(default=10, ge=1)
    """Wrong passwords for a name from one address, and five times as many sign-ins per address, within
    ``attempt_seconds``; a browser that has signed in to the account before has as many of its own."""
    attempt_seconds: float = Field(default=300.0, gt=0)
    account_attempts: int = Field(default=100, ge=1)
    """Sign-ins by a name from all addresses within ``account_seconds``; those of such browsers apart."""
    account_seconds: float = Field(default=3600.0, gt=0)
    max_file_bytes: int = Field(default=64_000_000, ge=1_000)
    """Largest file of a run that a page reads."""
    rows: int = Field(default=50, ge=1, le=500)
    """Rows per page of a list."""
    oidc: OidcSettings = OidcSettings()

    @field_validator("public_url")
    @classmethod
    def _address(cls, address: str | None) -> str | None:
        if address is None:
            return None
        require_web_address(address, encrypted=False)
        if "?" in address or "#" in address:
            raise ValueError(f"{address!r} has more than a path")
        return address.rstrip("/")

    @model_validator(mode="after")
    def _somebody_gets_in(self) -> Self:
        if self.oidc.issuer is not None and self.public_url is None:
            raise ValueError("'issuer' needs 'public_url', where the provider sends browsers back")
        if self.oidc.issuer is None and not self.passwords:
            raise ValueError("'passwords' can be turned off only with an 'issuer'")
        return self

    @property
    def https(self) -> bool:
        """Whether browsers reach the pages over HTTPS."""
        return self.secure or (self.public_url or "").startswith("https:")


def require_web_address(address: str, *, encrypted: bool = True) -> None:
    """Raise ``ValueError`` unless ``address`` begins with ``https://HOST``.

    On this machine, or anywhere if it need not be ``encrypted``, ``http`` will do.
    """
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{address!r} is no address of a web site") from error
    plain = parts.scheme == "http" and host is not None and (not encrypted or is_loopback(host))
    if not host or not (plain or parts.scheme == "https") or parts.username is not None:
        raise ValueError(f"{address!r} does not begin with https://HOST")
