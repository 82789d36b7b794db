"""Plain requests and votes: the policy writes whole answers, and one of them, or the most frequent, is sent.

A request passes :func:`plain_choices` alone: one call of the policy for each choice, its answers, a vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from surefoot.answers import AnswerChecker, Grader, Solution, group_equal
from surefoot.protocols import Candidate, Completion, SampleRequest, SampleResult
from surefoot.records import Message, Reasoning, Trace, Usage, trusted_copy
from surefoot.search.method import SearchCounts
from surefoot.search.selection import FIRST, SELECTORS
from surefoot.segment import segment_trace
from surefoot.server.gateway.choice import (
    CertainText,
    Choice,
    OnText,
    are_quick,
    below,
    check_complete,
    choice_seed,
    ended,
    in_channels,
    independent,
    no_solution,
    shown_in_channels,
    text_candidate,
)
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import PLAIN, Plan
from surefoot.server.gateway.upstream import Upstream, policy_failure
from surefoot.server.records import SampledTokens


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
    plan.usage += sum((result.usage for result in results), Usage())
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
    usage = Usage(completion_tokens=completion.tokens)
    if number == 0:  # the shared cost of the samples is counted with the first
        usage = trusted_copy(result.usage, {"completion_tokens": completion.tokens})
    return Choice(
        candidates=(trusted_copy(candidate, changes),),
        chosen=0,
        seed=plan.seed,
        rule=FIRST,
        usage=usage,
        counts=SearchCounts(sampled=1),
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
