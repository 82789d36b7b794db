"""Searches of steps: solutions that the policy continues step by step, as the reward model scores them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from surefoot.answers import Grader, final_answer
from surefoot.batching import Batcher
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import STOP_UNKNOWN, Completion, ProblemTrace, SampleRequest, SampleResult
from surefoot.records import Ending, Message, Problem, StepScores, Usage
from surefoot.search.method import SearchResult, conclude
from surefoot.search.saved_tree import finite
from surefoot.search.space import Prefix, Space, Steps
from surefoot.server.gateway.choice import (
    Choice,
    OnText,
    are_quick,
    below,
    choice_seed,
    first_stop,
    in_channels,
    independent,
    no_solution,
    partial_stop,
    shown_in_channels,
)
from surefoot.server.gateway.plan import Plan, one_by_one
from surefoot.server.gateway.upstream import Upstream, gather_all, policy_failure
from surefoot.server.records import GatewayCandidate


async def search_choices(
    plan: Plan, upstream: Upstream, grader: Grader, on_text: OnText | None
) -> list[Choice]:
    """All choices of a plan whose strategy is a search. Raises :class:`ApiError`."""
    return await gather_all([_search(plan, number, upstream, grader, on_text) for number in range(plan.n)])


async def _search(
    plan: Plan, number: int, upstream: Upstream, grader: Grader, on_text: OnText | None
) -> Choice:
    search, show = plan.strategy, None
    if on_text and one_by_one(search) and plan.abstain_below is None:
        show = shown_in_channels(plan, on_text)
    session = StepSession(
        upstream,
        separator=plan.separator,
        max_tokens=plan.sampling.max_tokens,
        stop=plan.sampling.stop,
        on_text=partial(show, number) if show is not None else None,
    )
    if not search.needs_scorer:
        session.scorer = None
    space = Space(
        plan.problem,
        session,
        steps=Steps(
            separator=plan.separator,
            step_tokens=plan.step_tokens,
            max_steps=plan.max_steps,
            whole=not plan.continues,
            sampling=plan.sampling,
            prompt=_FixedPrompt(prompt=plan.prompt),
        ),
        aggregation=plan.aggregation,
        grader=grader,
        seed=choice_seed(plan.seed, number),
    )
    try:
        leaves = await search.explore(space)
    finally:
        plan.usage += space.usage

    def conclusion() -> Choice:
        result = conclude(space, search.name, leaves, search.rule)
        return _search_choice(result, space, leaves, session, plan, number, on_text is not None)

    solutions = {space.solution(leaf) for leaf in leaves}
    answers = [final_answer(solution, grader.styles) for solution in solutions]
    if are_quick([solution.text for solution in solutions], answers):
        choice = conclusion()
    else:
        choice = await grader.checker.run(conclusion)  # in a thread: other requests go on
    if choice.chosen is None and choice.error is not None:
        raise policy_failure(choice.error)
    return choice


def _search_choice(
    result: SearchResult,
    space: Space,
    leaves: Sequence[Prefix],
    session: StepSession,
    plan: Plan,
    number: int,
    streamed: bool,
) -> Choice:
    chosen = result.chosen
    withheld: str | None
    reasoning = text = ""
    ending: Ending = "filtered"
    if chosen is None:
        withheld = no_solution(result.counts.sampled)
    else:
        trace = result.candidates[chosen]
        withheld = below(plan.abstain_below, result.values[chosen], "solution")
        if withheld is None:
            reasoning, text = in_channels(plan, session.visible(trace.text or ""), streamed=streamed)
        ending = trace.ending if trace.finish_reason else "truncated"
    used = {node for leaf in leaves for node in leaf.path()}
    dropped = [node for node in space.tree if node.text and node not in used]
    return Choice(
        candidates=tuple(
            GatewayCandidate(
                trace=trace,
                chosen=index == chosen and withheld is None,
                choice=number,
                weight=result.weights[index],
                score=result.values[index],
                scores=result.scores[index] if result.scores else None,
                reason=withheld if index == chosen else f"not chosen by {result.rule}",
            )
            for index, trace in enumerate(result.candidates)
        ),
        chosen=chosen,
        seed=result.seed,
        rule=result.rule,
        usage=result.usage,
        counts=result.counts,
        error=result.error,
        text=text,
        reasoning=reasoning or None,
        ending=ending,
        withheld=withheld,
        dropped=[
            {"step": node.depth - 1, "text": node.text, "score": finite(space.step_value(node))}
            for node in dropped
        ],
    )


@dataclass(frozen=True, kw_only=True)
class _FixedPrompt(PromptFormat):
    """A prompt that does not depend on the problem."""

    prompt: str | tuple[Message, ...]

    def render(self, problem: Problem) -> str | tuple[Message, ...]:  # noqa: ARG002 - the base's signature
        """The prompt, for every problem."""
        return self.prompt


class StepSession(Batcher):
    """A :class:`surefoot.batching.Batcher` for one request, which passes on to ``shared``.

    **Length.** No solution gets longer than ``max_tokens`` tokens, in any number of steps.
    **Stop texts.** A solution ends at the start of the first text of ``stop``, also across steps;
    :meth:`visible` is the part of a solution before it. **Streaming.** Of a search of
    one solution, ``on_text`` receives each step that has been accepted: a request continues it.
    """

    def __init__(
        self,
        shared: Batcher,
        *,
        separator: str,
        max_tokens: int,
        stop: Sequence[str] = (),
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(shared.policy, shared.scorer, overlap=True)
        self._shared, self._separator, self._max_tokens = shared, separator, max_tokens
        self._on_text, self._stop = on_text, independent(stop)
        self._lengths: dict[str, int] = {}
        """Tokens of each solution, finished or not, by its text."""
        self._stopped: dict[str, int] = {}
        """Start of the stop text, in characters, by the text of the solution that it ends."""
        self._shown = 0
        """Characters that ``on_text`` has received."""

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result per request."""
        self._show(requests)
        bounded = [self._bounded(request) for request in requests]
        open_requests = [request for request in bounded if request is not None]
        responses = iter(await self._shared.sample(open_requests) if open_requests else [])
        return [
            self._ended_result(request) if sent is None else self._cut(request, next(responses))
            for request, sent in zip(requests, bounded, strict=True)
        ]

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record per item."""
        return await self._shared.score(items)

    def visible(self, solution: str, *, finished: bool = True) -> str:
        """A solution up to its stop text, or an unfinished one up to a possible beginning of a stop text."""
        if solution in self._stopped:
            return solution[: self._stopped[solution]]
        return solution if finished else solution[: len(solution) - partial_stop(solution, self._stop)]

    def _bounded(self, request: SampleRequest) -> SampleRequest | None:
        remaining = self._max_tokens - self._lengths.get(request.prefix, 0)
        if remaining < 1 or request.prefix in self._stopped:
            return None
        sampling = request.sampling
        if sampling.max_tokens <= remaining and not self._stop:
            return request
        sampling = replace(
            sampling, max_tokens=min(sampling.max_tokens, remaining), stop=(*sampling.stop, *self._stop)
        )
        return replace(request, sampling=sampling)

    def _ended_result(self, request: SampleRequest) -> SampleResult:
        reason = "stop" if request.prefix in self._stopped else "length"
        end = Completion(text="", finish_reason=reason, tokens=0)
        return SampleResult(completions=(end,) * request.n, usage=Usage())

    def _cut(self, request: SampleRequest, result: SampleResult) -> SampleResult:
        completions = tuple(self._cut_completion(request, completion) for completion in result.completions)
        if all(map(operator.is_, completions, result.completions)):
            return result
        return replace(result, completions=completions)

    def _cut_completion(self, request: SampleRequest, completion: Completion) -> Completion:
        is_step = self._separator in request.sampling.stop
        if completion.finish_reason == STOP_UNKNOWN and not is_step:
            completion = replace(completion, finish_reason="stop")
        solution = request.prefix + completion.text
        at = first_stop(solution, self._stop, after=len(request.prefix))
        if at is not None:
            text = solution[len(request.prefix) : max(at, len(request.prefix))]
            completion = replace(completion, text=text, finish_reason="stop", token_ids=(), logprobs=())
            solution = request.prefix + text
            self._stopped.setdefault(solution, at)
        self._lengths.setdefault(solution, self._lengths.get(request.prefix, 0) + completion.tokens)
        return completion

    def _show(self, requests: Sequence[SampleRequest]) -> None:
        if self._on_text is not None and requests:
            visible = self.visible(requests[0].prefix, finished=False)
            self._on_text(visible[self._shown :])
            self._shown = max(self._shown, len(visible))
