"""Settings of the pages and of signing in to them; quick to import, as the command line reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from surefoot.server.gateway.settings import Network, Settings

PageRole = Literal["admin", "annotator", "viewer"]
"""What an account of the pages may do."""


class PageSettings(Settings):
    """How the pages are served."""

    secure: bool = Field(
        default=False, description="Send cookies over HTTPS only: behind a proxy that speaks it."
    )
    passwords: bool = Field(
        default=True,
        description="Let people sign in with a password; turn it off only behind a sign-in proxy.",
    )
    trusted_user_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header in which a sign-in proxy names the user, such as `X-Forwarded-User`; "
        "needs `trusted_proxies`.",
    )
    trusted_proxies: tuple[Network, ...] = Field(
        default=(),
        description="Address or network of the sign-in proxy; the header is refused from all others.",
    )
    trusted_user_role: PageRole | None = Field(
        default=None,
        description="Role of the accounts that are created for unknown users of the sign-in proxy; "
        "if not given, unknown users are refused.",
    )
    reports: tuple[Path, ...] = Field(
        default=(), description="Folder of finished runs, whose reports the pages list."
    )
    max_form_bytes: int = Field(default=1_000_000, ge=1_000)
    max_upload_bytes: int = Field(default=64_000_000, ge=1_000)
    session_hours: float = Field(default=12.0, gt=0)
    attempts: int = Field(default=10, ge=1)
    """Wrong passwords for a name from one address, and five times as many sign-ins per address, within
    ``attempt_seconds``; a browser that has signed in to the account before is counted separately."""
    attempt_seconds: float = Field(default=300.0, gt=0)
    account_attempts: int = Field(default=100, ge=1)
    """Sign-ins by a name from all addresses within ``account_seconds``; except from such browsers."""
    account_seconds: float = Field(default=3600.0, gt=0)
    rows: int = Field(default=25, ge=1, le=500)
    """Rows per page of a list."""

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if (self.trusted_user_header is None) != (not self.trusted_proxies):
            raise ValueError("'trusted_user_header' and 'trusted_proxies' must be given together")
        if self.trusted_user_header is None and self.trusted_user_role is not None:
            raise ValueError("'trusted_user_role' needs 'trusted_user_header'")
        if self.trusted_user_header is None and not self.passwords:
            raise ValueError("'passwords' can only be turned off with 'trusted_user_header'")
        return self
