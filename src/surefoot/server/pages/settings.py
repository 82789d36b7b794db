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
    trusted_user_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Header in which a sign-in proxy names the user, such as `X-Forwarded-User`; "
        "needs `trusted_proxies`, and personal links do not work beside it.",
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
    attempts: int = Field(default=60, ge=1)
    """Sign-ins of one address in a minute."""
    rows: int = Field(default=25, ge=1, le=500)
    """Rows per page of a list."""

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if (self.trusted_user_header is None) != (not self.trusted_proxies):
            raise ValueError("'trusted_user_header' and 'trusted_proxies' must be given together")
        if self.trusted_user_header is None and self.trusted_user_role is not None:
            raise ValueError("'trusted_user_role' needs 'trusted_user_header'")
        return self
