"""What a command would cost, from the lengths of its inputs; no model is loaded or asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from surefoot.cli.terminal import echo
from surefoot.labelling.dry_run import CHARACTERS_PER_TOKEN
from surefoot.records import Usage
from surefoot.work.cost import Rates, predict_hours

T = TypeVar("T")

_LOOKED_AT = 1000
"""Items whose lengths stand for all."""


def predict_usage(
    items: Sequence[T],
    text_of: Callable[[T], str],
    *,
    replies: int,
    max_tokens: int,
    prompts: int | None = None,
) -> Usage:
    """Tokens of asking for ``replies`` to each item, none of them longer than ``max_tokens``.

    ``prompts`` is how often the prompt is read for an item; by default with each reply.
    """
    stride = max(1, len(items) // _LOOKED_AT)
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
