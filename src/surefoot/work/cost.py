"""How long a job takes, predicted from its tokens and the rates of the servers or workers."""

from __future__ import annotations

from pydantic import Field

from surefoot.records import FrozenModel, Usage


class Rates(FrozenModel):
    """How many tokens a second all servers or workers together read and write."""

    read_rate: float | None = Field(
        default=None, gt=0, description="With `--dry-run`: tokens read a second by all servers or workers."
    )
    write_rate: float | None = Field(
        default=None, gt=0, description="With `--dry-run`: tokens written a second."
    )


def predict_hours(usage: Usage, rates: Rates) -> float | None:
    """Hours to read and write the tokens of ``usage``: a device either reads or writes.

    ``None`` if a rate that is needed was not given.
    """
    needed = [
        (tokens, rate)
        for tokens, rate in (
            (usage.prompt_tokens, rates.read_rate),
            (usage.completion_tokens, rates.write_rate),
        )
        if tokens
    ]
    if not needed or any(rate is None for _, rate in needed):
        return None
    return sum(tokens / rate for tokens, rate in needed if rate is not None) / 3600
