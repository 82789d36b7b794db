"""A project's protocol from a form, and checked changes to one."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from surefoot.annotation.database import Protocol
from surefoot.annotation.pages.forms import Form
from surefoot.errors import StoreError


def protocol_of(form: Form, before: Protocol) -> Protocol:
    """The protocol as the settings form has it; the queue's part stays as it was.

    Raises ``StoreError`` naming the field.
    """
    return protocol_with(
        before,
        phase=form.whole("phase"),
        show_answer=form.ticked("show_answer"),
        annotators=form.whole("annotators"),
        values=[value for value in (-1, 0, 1) if form.ticked(f"value{value}")],
        screening_pass=form.share("screening_pass", default=0.0),
        lease_seconds=form.whole("lease_minutes") * 60,
    )


def protocol_with(before: Protocol, **changes: Any) -> Protocol:
    """``before`` with checked changes. Raises ``StoreError`` naming the field."""
    try:
        return Protocol.model_validate({**before.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"'{where}': {first['msg']}") from error
