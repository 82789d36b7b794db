"""Predicts the tokens and time of a command from the lengths of its inputs, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from surefoot.cli.terminal import echo
from surefoot.labelling.dry_run import CHARACTERS_PER_TOKEN
from surefoot.records import Usage
from surefoot.work.cost import Rates, predict_hours

T = TypeVar("T")

_SAMPLE = 1000
"""Number of items whose lengths are measured."""


def predict_usage(
    items: Sequence[T],
    text_of: Callable[[T], str],
    *,
    replies: int,
    max_tokens: int,
    prompts: int | None = None,
) -> Usage:
    """Tokens for ``replies`` of at most ``max_tokens`` tokens per item.

    ``prompts`` is the number of times that an item's prompt is read, by default once per reply.
    """
    stride = max(1, len(items) // _SAMPLE)
    lengths = [len(text_of(items[at])) for at in range(0, len(items), stride)]
    each = sum(lengths) / len(lengths) / CHARACTERS_PER_TOKEN
    calls = len(items) * (replies if prompts is None else prompts)
    return Usage(
        prompt_tokens=round(calls * each), completion_tokens=len(items) * replies * max_tokens, calls=calls
    )


def say_prediction(what: str, usage: Usage, rates: Rates) -> None:
    """Show the tokens and hours of ``what``."""
    written = f", at most {usage.completion_tokens:,} written" if usage.completion_tokens else ""
    echo(
        f"{what}: about {usage.prompt_tokens:,} tokens read ({CHARACTERS_PER_TOKEN} characters each)"
        f"{written}, in {usage.calls:,} requests"
    )
    say_hours(usage, rates)


def say_hours(usage: Usage, rates: Rates) -> None:
    """Show the hours, if the rates were given."""
    hours = predict_hours(usage, rates)
    if hours is not None:
        echo(f"{hours:,.2f} hours")
