"""What a job costs before it is started: hours and money from its tokens, rates and prices."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from surefoot.records import Usage

MILLION = 1_000_000


class Rates(BaseModel):
    """How fast and at what price tokens are read and written. Only what is given is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_rate: float | None = Field(
        default=None,
        gt=0,
        description="With `--dry-run`: tokens that all servers or workers together read a second.",
    )
    write_rate: float | None = Field(
        default=None, gt=0, description="With `--dry-run`: tokens that they write a second."
    )
    price_hour: float | None = Field(
        default=None, ge=0, description="With `--dry-run`: price of an hour of all of them."
    )
    price_read: float | None = Field(
        default=None, ge=0, description="With `--dry-run`: price of a million tokens read."
    )
    price_write: float | None = Field(
        default=None, ge=0, description="With `--dry-run`: price of a million tokens written."
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a job with so many tokens. ``None`` where a rate or price that it needs was not given."""

    hours: float | None
    """read / read_rate + written / write_rate, in hours: reading and writing take turns on a device."""
    rent: float | None
    """hours * price_hour"""
    tokens_price: float | None
    """(read * price_read + written * price_write) / 1,000,000"""

    @classmethod
    def of(cls, usage: Usage, rates: Rates) -> Cost:
        """The cost of ``usage``; a rate or price is needed only for tokens that there are."""
        seconds = _sum(
            (usage.prompt_tokens, rates.read_rate and 1 / rates.read_rate),
            (usage.completion_tokens, rates.write_rate and 1 / rates.write_rate),
        )
        hours = None if seconds is None else seconds / 3600
        price = _sum((usage.prompt_tokens, rates.price_read), (usage.completion_tokens, rates.price_write))
        return cls(
            hours=hours,
            rent=None if hours is None or rates.price_hour is None else hours * rates.price_hour,
            tokens_price=None if price is None else price / MILLION,
        )

    def __str__(self) -> str:
        parts = []
        if self.hours is not None:
            rent = "" if self.rent is None else f", {self.rent:,.2f} by the hour"
            parts.append(f"{self.hours:,.2f} hours{rent}")
        if self.tokens_price is not None:
            parts.append(f"{self.tokens_price:,.2f} by the token")
        return "; ".join(parts)


def _sum(*terms: tuple[int, float | None]) -> float | None:
    """Sum of amount times rate; ``None`` if there is an amount whose rate is unknown, or no rate at all."""
    needed = [(amount, rate) for amount, rate in terms if amount]
    if not needed or any(rate is None for _, rate in needed):
        return None
    return sum(amount * rate for amount, rate in needed if rate is not None)
