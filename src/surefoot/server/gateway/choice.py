"""An answer with its candidates, and the code that all ways of answering share.

Plain requests and votes pass :func:`plain_choices` alone: one call of the policy for each choice, its
answers, and one of them, or the most frequent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from surefoot.answers import AnswerChecker, Grader, Solution, group_equal
from surefoot.answers.checker import plain_words
from surefoot.guard import GuardDecision
from surefoot.maths import read_quantity
from surefoot.protocols import STOP_UNKNOWN, Candidate, Completion, SampleRequest, SampleResult
from surefoot.records import Ending, Message, Reasoning, ToolCall, Trace, Usage, content_id, trusted_copy
from surefoot.search.method import Finish, SearchCounts, finish_of
from surefoot.search.selection import FIRST, SELECTORS
from surefoot.segment import ChannelReader, channels_of, partial_end, segment_trace
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import NO_USAGE, PLAIN, Plan
from surefoot.server.gateway.upstream import Upstream, policy_failure
from surefoot.server.records import GatewayCandidate, SampledTokens

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


async def plain_choices(
    plan: Plan, upstream: Upstream, grader: Grader, on_text: OnText | None, *, guarded: bool
) -> list[Choice]:
    """All choices of a plan without steps or tools. Raises :class:`ApiError`, also if ``guarded`` and the
    policy calls tools."""
    votes = plan.strategy is not PLAIN
    requests = [
        SampleRequest(
            prompt=plan.prompt,
            n=plan.strategy.draws if votes else plan.n,
            seed=choice_seed(plan.seed, number),
            sampling=plan.sampling,
            logprobs=plan.logprobs,
        )
        for number in range(plan.n if votes else 1)
    ]
    stops = independent(plan.sampling.stop)
    if on_text is not None and not votes:
        certain = [CertainText(stops) for _ in range(plan.n)]
        show = shown_in_channels(plan, on_text)
        results = [
            await upstream.stream(requests[0], lambda number, new: show(number, certain[number].add(new)))
        ]
    else:
        results = await upstream.sample(requests)
    plan.usage = sum((result.usage for result in results[1:]), results[0].usage)
    answers = [[ended(completion, stops) for completion in result.completions] for result in results]
    if guarded and any(completion.tool_calls for row in answers for completion in row):
        raise ApiError(502, "the policy calls tools, but the request defines none", code="policy_failed")
    if not votes:
        check_complete(results[0], plan.n)
        streamed = on_text is not None
        make = partial(_plain_choice, plan, upstream.policy.name, results[0], streamed=streamed)
        return [make(number, completion) for number, completion in enumerate(answers[0])]
    return [
        await _vote(plan, upstream.policy.name, number, result, row, grader, streamed=on_text is not None)
        for number, (result, row) in enumerate(zip(results, answers, strict=True))
    ]


_ONE_SAMPLE: Final = SearchCounts(sampled=1)


def _plain_choice(
    plan: Plan, policy: str, result: SampleResult, number: int, completion: Completion, *, streamed: bool
) -> Choice:
    thought, text = in_channels(plan, completion.text, streamed=streamed)
    reasoning = completion.reasoning or (Reasoning(text=thought) if thought else None)
    candidate = text_candidate(plan, policy, completion, text, reasoning, number)
    changes: dict[str, Any] = {"chosen": True, "choice": number}
    calls = completion.tool_calls
    if calls or plan.images:  # which the messages before hold
        reply = Message(role="assistant", content=text or None, tool_calls=calls, reasoning=reasoning)
        messages = (*(plan.messages if plan.images else ()), reply)
        fields = {"id": "", "text": None, "reasoning": None, "messages": messages}  # which the id is of
        trace = Trace(**{**vars(candidate.trace), **fields})
        changes["trace"] = segment_trace(trace) if plan.images else trace
    if plan.session is not None:
        changes["tokens"] = SampledTokens.of(completion, result)
    # the shared cost of the samples is counted with the first
    usage = trusted_copy(NO_USAGE if number else result.usage, {"completion_tokens": completion.tokens})
    return Choice(
        candidates=(trusted_copy(candidate, changes),),
        chosen=0,
        seed=plan.seed,
        rule=FIRST,
        usage=usage,
        counts=_ONE_SAMPLE,
        error=result.error,
        text=text,
        ending=completion.ending,
        tool_calls=calls,
        reasoning=reasoning.readable or None if reasoning else None,
    )


async def _vote(
    plan: Plan,
    policy: str,
    number: int,
    result: SampleResult,
    completions: Sequence[Completion],
    grader: Grader,
    *,
    streamed: bool,
) -> Choice:
    """The choice with the most frequent answer; equal texts are one candidate."""
    by_text = {completion.whole_text: completion for completion in reversed(completions)}
    texts = [completion.whole_text for completion in completions]
    weights = Counter(text for text in texts if text.strip())
    solutions = [Solution(text=text, finish_reason=by_text[text].finish_reason) for text in weights]
    answers = [grade.answer for grade in grader.grade(solutions, [None] * len(weights), plan.problem.text)]
    choice = Choice(
        candidates=(),
        chosen=None,
        seed=choice_seed(plan.seed, number),
        rule="majority",
        usage=result.usage,
        counts=SearchCounts(
            nodes=len(weights),
            sampled=len(completions),
            merged=len(completions) - len(weights),
            failed=plan.strategy.draws - len(completions),
        ),
        error=result.error,
        ending="filtered",
    )
    if not weights:
        if result.error is not None:
            raise policy_failure(result.error)
        choice.withheld = no_solution(len(completions))
        return choice
    work = partial(_most_frequent, answers, list(weights.values()), grader.checker)
    chosen = work() if are_quick(weights, answers) else await grader.checker.run(work)
    withheld = below(plan.abstain_below, None, "solution")
    candidates = []
    for at, ((text, weight), answer) in enumerate(zip(weights.items(), answers, strict=True)):
        reason = withheld if at == chosen else "not chosen by majority"
        candidate = text_candidate(plan, policy, by_text[text], text, None, at)
        changes: dict[str, Any] = {
            "chosen": reason is None,
            "choice": number,
            "weight": weight,
            "reason": reason,
        }
        changes["trace"] = trusted_copy(candidate.trace, {"answer": answer})
        candidates.append(trusted_copy(candidate, changes))
    best = candidates[chosen].trace
    choice.candidates, choice.chosen, choice.withheld, choice.ending = (
        candidates,
        chosen,
        withheld,
        best.ending,
    )
    if withheld is None:
        thought, choice.text = in_channels(plan, best.text or "", streamed=streamed)
        choice.reasoning = thought or None
    return choice


def _most_frequent(answers: Sequence[str | None], weights: Sequence[int], checker: AnswerChecker) -> int:
    """Index of the most frequent answer."""
    groups = group_equal(answers, checker)
    votes = [at for at, weight in enumerate(weights) for _ in range(weight)]
    return votes[SELECTORS["majority"].select([Candidate(answer=groups[at], score=None) for at in votes])]
