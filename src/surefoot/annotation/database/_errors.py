"""Why the store refuses: what a server answers with 404, 409 and 403."""

from __future__ import annotations

from surefoot.errors import StoreError


class NotFoundError(StoreError):
    """There is no such thing, or not in this project."""


class ConflictError(StoreError):
    """Somebody else was first: a version, a name, a lease, or an idempotency key used for something else."""


class ForbiddenError(StoreError):
    """The user is not a member of the project, or does not have the item."""


class UnavailableError(StoreError):
    """The database failed or did not answer: nothing is wrong with what was asked."""
