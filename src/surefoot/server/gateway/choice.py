"""An answer with its candidates, and the code that all ways of answering share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from surefoot.answers.checker import plain_words
from surefoot.guard import GuardDecision
from surefoot.maths import read_quantity
from surefoot.protocols import STOP_UNKNOWN, Completion, SampleResult
from surefoot.records import Ending, Reasoning, ToolCall, Trace, Usage, content_id, trusted_copy
from surefoot.search.method import Finish, SearchCounts, finish_of
from surefoot.segment import ChannelReader, channels_of, partial_end
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.upstream import policy_failure
from surefoot.server.records import GatewayCandidate

SHORT_CHARACTERS = 4000
"""Texts up to this length are checked and compared in the event loop."""
OnText = Callable[[int, str, str], None]
"""Called with the number of a choice, and with its new reasoning and text that can no longer change."""


@dataclass(kw_only=True, slots=True)
class Choice:
    """One answer, with all candidates that it was chosen from."""

    candidates: Sequence[GatewayCandidate]
    chosen: int | None
    """Index of the chosen candidate; ``None`` without a solution."""
    seed: int
    rule: str
    """How the candidate was chosen, see :data:`surefoot.search.selection.Rule`."""
    usage: Usage
    counts: SearchCounts
    ending: Ending
    text: str = ""
    """The chosen candidate's text before a stop text; empty if it is withheld, as its calls and reasoning."""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    """The chosen candidate's visible reasoning, which the text does not contain."""
    error: str | None = None
    withheld: str | None = None
    """Why the text must not be shown, or why there is none."""
    dropped: Sequence[dict[str, Any]] = ()
    """Number, text and score of the sampled steps that no candidate contains."""
    decisions: tuple[GuardDecision, ...] = ()
    """The guard's decisions, one for each sampled message with calls."""
    guarded: bool = False
    """Whether candidates that were not released must not be shown: a guard checks their calls, or a flag
    keeps the answer back."""
    blocked: bool = False
    """Whether the guard released no message."""

    @property
    def best(self) -> GatewayCandidate | None:
        """The chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen]

    @property
    def value(self) -> float | None:
        """Aggregated score of the chosen candidate."""
        return self.best.score if self.best is not None else None

    @property
    def finish(self) -> Finish:
        """How the candidate was chosen."""
        records = (candidate.scores for candidate in self.candidates)
        return finish_of(self.chosen, self.rule, records, self.counts)

    @property
    def abstained(self) -> bool:
        """Whether no answer is shown."""
        return self.withheld is not None or self.chosen is None


def usage_of(choices: Sequence[Choice]) -> Usage:
    """Usage of all choices."""
    if len(choices) == 1:
        return choices[0].usage
    return sum((choice.usage for choice in choices), Usage())


def choice_seed(seed: int, number: int) -> int:
    """Seed of a choice: the request's for the first, a hash of both for the others."""
    return seed if number == 0 else int(content_id("choice seed", seed, number), 16) % 2**31


def check_complete(result: SampleResult, n: int) -> None:
    """Raise :class:`ApiError` if fewer than ``n`` completions came."""
    if len(result.completions) < n:
        raise policy_failure(result.error or "policy: it returned fewer samples than requested")


def below(threshold: float | None, value: float | None, what: str) -> str | None:
    """Why an answer with this aggregated score is withheld."""
    if threshold is None or (value is not None and value >= threshold):
        return None
    score = "is unscored" if value is None else f"scores {value:.3f}"
    return f"the best {what} {score}, and {threshold:g} is required"


def no_solution(draws: int) -> str:
    """Why a search without a failed request found no solution."""
    if not draws:
        return "no solution: the search did not sample any step"
    samples = "one sample" if draws == 1 else f"{draws} samples"
    return (
        f"no solution: the policy returned none in {samples}; check that it can solve such problems, "
        "and that the prompt has the format that it expects"
    )


def are_quick(texts: Iterable[str], answers: Iterable[str | None]) -> bool:
    """Whether solutions are quick to compare: the texts are short, and no answer needs algebra."""
    if sum(map(len, texts)) > SHORT_CHARACTERS:
        return False
    return all(read_quantity(answer) or plain_words(answer) for answer in {*answers} - {None} if answer)


def in_channels(plan: Plan, text: str, *, streamed: bool) -> tuple[str, str]:
    """Reasoning and answer of a text. What a stream has sent cannot become reasoning by a closing tag that
    follows."""
    channels = channels_of(text, inside=plan.opened if streamed or plan.opened else None)
    return channels.reasoning, channels.answer


def shown_in_channels(plan: Plan, on_text: OnText) -> Callable[[int, str], None]:
    """Divide new text before it is shown."""
    readers: dict[int, ChannelReader] = {}

    def show(number: int, text: str) -> None:
        reader = readers.setdefault(number, ChannelReader(inside=plan.opened))
        on_text(number, *reader.add(text))

    return show


_TRACE: Final = Trace(problem_id="", text="")
_CANDIDATE: Final = GatewayCandidate(trace=_TRACE, chosen=False)


def text_candidate(
    plan: Plan, policy: str, completion: Completion, text: str, reasoning: Reasoning | None, sample: int
) -> GatewayCandidate:
    """An answer that was sampled whole, not chosen so far. It is made of checked parts, so nothing is
    validated again."""
    problem_id = plan.problem.id
    fields = {
        "id": content_id("trace", problem_id, policy, plan.seed, sample, text, plain=True),
        "problem_id": problem_id,
        "policy": policy,
        "text": text,
        "reasoning": reasoning,
        "seed": plan.seed,
        "sample": sample,
        "finish_reason": completion.finish_reason,
    }
    return trusted_copy(_CANDIDATE, {"trace": trusted_copy(_TRACE, fields)})


def independent(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop texts that can end a text: one that contains another never ends first."""
    return tuple(text for text in stops if not any(other in text[:-1] for other in stops))


def ended(completion: Completion, stops: Sequence[str]) -> Completion:
    """A whole answer up to the first of the stop texts."""
    if completion.finish_reason == STOP_UNKNOWN:
        completion = replace(completion, finish_reason="stop")
    at = first_stop(completion.text, stops, after=0) if stops else None
    if at is None:
        return completion
    return replace(completion, text=completion.text[:at], finish_reason="stop", token_ids=(), logprobs=())


def first_stop(text: str, stops: Sequence[str], *, after: int) -> int | None:
    """Start of the stop text that ends first, of those that end behind ``after``."""
    ends = [
        (at + len(stop), at) for stop in stops if (at := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(ends)[1] if ends else None


def partial_stop(text: str, stops: Sequence[str]) -> int:
    """Characters at the end of an unfinished text that may be the beginning of a stop text."""
    return max((partial_end(text, stop) for stop in stops), default=0)


class CertainText:
    """The certain part of an answer that is being written, in time linear in it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops, self._ended = stops, False
        self._most = max(map(len, stops), default=1) - 1
        self._tail = ""
        """The end of the text, in which a stop text may have begun."""
        self._held = 0
        """Characters at its end that are not certain."""

    def add(self, new: str) -> str:
        """The text that ``new`` makes final: all up to the first stop text that ends in it."""
        if self._ended:
            return ""
        text, begin = self._tail + new, len(self._tail) - self._held
        end = first_stop(text, self._stops, after=len(self._tail))
        if end is not None:
            self._ended = True
            return text[begin:end]
        self._held = min(partial_stop(text, self._stops), len(text) - begin)
        self._tail = text[max(0, len(text) - self._most) :]
        return text[begin : len(text) - self._held]
