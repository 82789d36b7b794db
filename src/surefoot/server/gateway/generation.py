"""From a plan to its answers: the policy alone, or a search through the common batcher."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import commonprefix
from typing import Any, TypeVar

from surefoot.answers import Grader
from surefoot.batching import Batcher
from surefoot.errors import PolicyError, ScoreError
from surefoot.guard import Guard, GuardDecision, Review
from surefoot.protocols import (
    STOP_UNKNOWN,
    Completion,
    ProblemTrace,
    SampleRequest,
    SampleResult,
    TakesExtraBody,
)
from surefoot.records import Message, StepScores, Trace, Usage, content_id
from surefoot.search.method import SearchCounts, SearchResult, conclude
from surefoot.search.saved_tree import save_tree
from surefoot.search.selection import FIRST
from surefoot.search.space import Prefix, Space
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import CONTENT_FILTER, GeneratedChoice, Generation, OnText, Plan, StreamMode
from surefoot.server.gateway.records import DrawnTokens
from surefoot.server.gateway.tool_replies import ToolReplies
from surefoot.server.gateway.upstream import UpstreamPolicy, policy_failure


class RequestSession(Batcher):
    """A :class:`surefoot.batching.Batcher` for one request, which passes on to ``shared``.

    **Length.** No solution gets longer than ``max_tokens`` tokens after ``start``, however many steps it
    has. **Stop texts.** A solution ends where one of ``stop`` begins, also across the bounds of steps;
    :meth:`visible` is the part of a solution before it. **Streaming.** ``on_text`` is called with what is
    certain to be in the answer, as soon as it is; see :data:`StreamMode`.
    """

    def __init__(
        self,
        shared: Batcher,
        *,
        separator: str,
        max_tokens: int,
        stop: Sequence[str] = (),
        stream_mode: StreamMode = "end",
        on_text: Callable[[str], None] | None = None,
        start: str = "",
    ) -> None:
        super().__init__(shared.policy, shared.scorer, overlap=True)
        self._shared, self._separator, self._max_tokens = shared, separator, max_tokens
        self._stop, self._stream_mode, self._on_text, self._start = tuple(stop), stream_mode, on_text, start
        self._lengths: dict[str, int] = {}
        """Tokens of each solution, finished or not, by its text."""
        self._stopped: dict[str, int] = {}
        """Where a stop text begins, in characters, by the text of the solution that it ends."""
        self._ends: list[str] = []
        """Solutions that may be the answer, though nothing continues them."""
        self.policy_usage = Usage()
        self.scorer_usage = Usage()

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Completions, one result per request."""
        self._report_certain(requests)
        bounded = [self._bounded(request) for request in requests]
        open_requests = [request for request in bounded if request is not None]
        responses = iter(await self._shared.sample(open_requests) if open_requests else [])
        results = []
        for request, sent in zip(requests, bounded, strict=True):
            result = self._ended_result(request) if sent is None else self._cut(request, next(responses))
            self.policy_usage += result.usage
            results.append(result)
        return results

    async def stream(self, request: SampleRequest, on_text: Callable[[int, str], None]) -> SampleResult:
        """Completions of one request. If the policy streams, ``on_text`` gets, by the number of the sample,
        the text it is certain to begin with: nothing that may become a stop text.
        """
        sent = self._bounded(request)
        if sent is None:
            [result] = await self.sample([request])
            return result
        after = max(len(request.prefix), len(self._start))
        texts = [_CertainText(request.prefix, self._stop, after) for _ in range(request.n)]
        response = await self._shared.stream(
            sent, lambda number, new: on_text(number, texts[number].add(new))
        )
        result = self._cut(request, response)
        self.policy_usage += result.usage
        return result

    async def score(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Step scores, one record per item."""
        records = await self._shared.score(items)
        self.scorer_usage = sum((record.usage for record in records), self.scorer_usage)
        return records

    def visible(self, solution: str, *, finished: bool = True) -> str:
        """A solution up to its stop text; of an unfinished one, up to what may become one."""
        if solution in self._stopped:
            return solution[: self._stopped[solution]]
        return solution if finished else solution[: len(solution) - _partial_stop(solution, self._stop)]

    def _bounded(self, request: SampleRequest) -> SampleRequest | None:
        left = self._max_tokens - self._lengths.get(request.prefix, 0)
        if left < 1 or request.prefix in self._stopped:
            return None
        sampling = request.sampling
        sampling = replace(
            sampling, max_tokens=min(sampling.max_tokens, left), stop=(*sampling.stop, *self._stop)
        )
        return replace(request, sampling=sampling)

    def _ended_result(self, request: SampleRequest) -> SampleResult:
        """The result where nothing more can be written."""
        self._ends.append(request.prefix)
        reason = "stop" if request.prefix in self._stopped else "length"
        end = Completion(text="", finish_reason=reason, tokens=0)
        return SampleResult(completions=(end,) * request.n, usage=Usage())

    def _cut(self, request: SampleRequest, result: SampleResult) -> SampleResult:
        if result.error is not None:
            self._ends.append(request.prefix)
        completions = tuple(self._cut_completion(request, completion) for completion in result.completions)
        return replace(result, completions=completions)

    def _cut_completion(self, request: SampleRequest, completion: Completion) -> Completion:
        is_step = self._separator in request.sampling.stop
        if completion.finish_reason == STOP_UNKNOWN and not is_step:
            completion = replace(completion, finish_reason="stop")
        whole = request.prefix + completion.text
        at = _first_stop(whole, self._stop, after=max(len(request.prefix), len(self._start)))
        if at is not None:
            text = whole[len(request.prefix) : max(at, len(request.prefix))]
            completion = replace(completion, text=text, finish_reason="stop", token_ids=(), logprobs=())
            whole = request.prefix + text
            self._stopped.setdefault(whole, max(at, len(self._start)))
        self._lengths.setdefault(whole, self._lengths.get(request.prefix, 0) + completion.tokens)
        if not is_step or at is not None or not completion.text.endswith(self._separator):
            self._ends.append(whole)
        return completion

    def _report_certain(self, requests: Sequence[SampleRequest]) -> None:
        """Call ``on_text`` with what all solutions that are still possible begin with."""
        if self._on_text is None or self._stream_mode == "end" or not requests:
            return
        prefixes = [request.prefix for request in requests]
        if self._stream_mode == "common":
            prefixes += self._ends
        shared = commonprefix(prefixes)  # noqa: RUF071 - of texts, not of paths
        if any(prefix != shared for prefix in prefixes):  # whole steps only
            shared = (
                shared[: shared.rfind(self._separator) + len(self._separator)]
                if self._separator in shared
                else ""
            )
        self._on_text(self.visible(shared, finished=False))


def _first_stop(text: str, stops: Sequence[str], *, after: int) -> int | None:
    """Where the stop text that is the first to end, and ends behind ``after``, begins."""
    ends = [
        (at + len(stop), at) for stop in stops if (at := text.find(stop, max(0, after - len(stop) + 1))) >= 0
    ]
    return min(ends)[1] if ends else None


class _CertainText:
    """The certain part of a solution that is being written."""

    def __init__(self, text: str, stops: Sequence[str], after: int) -> None:
        self._text, self._stops, self._after = text, stops, after
        self._end: int | None = None

    def add(self, new: str) -> str:
        """What is certain after ``new`` came: up to the first stop text that ends in it."""
        if self._end is None:
            after = max(self._after, len(self._text))
            self._text += new
            self._end = _first_stop(self._text, self._stops, after=after)
        partial = _partial_stop(self._text, self._stops)
        return self._text[: len(self._text) - partial if self._end is None else self._end]


def _partial_stop(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of an unfinished text may be the beginning of a stop text."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``, and not all of it."""
    return next(
        (size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0
    )


T = TypeVar("T")
ChoiceReviewer = Callable[
    [int, tuple[Message, ...], Message, GuardDecision], Awaitable[tuple[Review | None, str | None]]
]
"""As :data:`surefoot.guard.loop.Reviewer`, with the number of the choice before."""


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Writes answers with the policy and the scorer of ``batcher``. ``on_usage`` is called with all tokens,
    including those of work that failed or was cancelled."""

    batcher: Batcher
    policy: UpstreamPolicy
    grader: Grader
    answer_s: float
    """Seconds of algebra per request; see ``AnswerChecker.limited``."""
    on_usage: Callable[[Usage], None]
    guard: Guard | None = None
    """Checks tool calls before they are released."""

    async def generate(
        self, plan: Plan, on_text: OnText | None = None, review: ChoiceReviewer | None = None
    ) -> Generation:
        """All choices of a plan; ``review`` is asked about calls that the guard holds.

        Raises :class:`ApiError`.
        """
        try:
            checker = self.grader.checker.limited(self.answer_s, caller=plan.caller)
            grader = replace(self.grader, checker=checker)
            if plan.tools and (plan.strategy.search is not None or self.guard is not None):
                choices = await self._with_tools(plan, grader, review)
            elif plan.strategy.search is None:
                choices = await self._plain(plan, on_text)
            else:
                choices = await gather_all(
                    [self._search(plan, number, grader, on_text) for number in range(plan.n)]
                )
        except PolicyError as error:
            raise policy_failure(str(error)) from error
        except ScoreError as error:
            raise ApiError(502, f"the reward model failed: {error}", code="scorer_failed") from error
        return Generation(
            policy=self.batcher.policy.name,
            scorer=getattr(self.batcher.scorer, "name", None) if plan.strategy.needs_scorer else None,
            strategy=plan.strategy.name,
            seed=plan.seed,
            choices=tuple(choices),
        )

    def _charge(self, plan: Plan, usage: Usage) -> None:
        plan.meter.usage += usage
        self.on_usage(usage)

    async def _plain(self, plan: Plan, on_text: OnText | None) -> list[GeneratedChoice]:
        session = RequestSession(
            self._tool_batcher(plan) if plan.extra_body else self.batcher,
            separator=plan.steps.separator,
            max_tokens=plan.max_tokens,
            stop=plan.stop,
        )
        request = SampleRequest(
            prompt=plan.steps.prompt.render(plan.problem),
            n=plan.n,
            seed=plan.seed,
            sampling=plan.steps.sampling,
            logprobs=plan.logprobs,
        )
        try:
            if on_text is None:
                [result] = await session.sample([request])
            else:
                result = await session.stream(request, on_text)
        finally:
            self._charge(plan, session.policy_usage)
        if len(result.completions) < plan.n:
            raise policy_failure(result.error or "policy: it returned fewer samples than requested")
        if self.guard is not None and any(one.tool_calls for one in result.completions):
            raise ApiError(502, "the policy calls tools, and the request has none", code="policy_failed")
        return [self._plain_choice(plan, session, result, number) for number in range(plan.n)]

    def _tool_batcher(self, plan: Plan) -> Batcher:
        """For the policy with the tools of a request. Raises :class:`ApiError` for one that takes none."""
        if not isinstance(self.policy.policy, TakesExtraBody):
            raise ApiError(400, f"policy {self.policy.name!r} does not support tools", code="unsupported")
        return Batcher(UpstreamPolicy(self.policy.policy.with_extra_body(plan.extra_body)), overlap=True)

    async def _with_tools(
        self, plan: Plan, grader: Grader, review: ChoiceReviewer | None
    ) -> list[GeneratedChoice]:
        """Whole messages, checked; nothing is shown before it is released."""
        batcher = self._tool_batcher(plan)

        def choice(number: int) -> Coroutine[Any, Any, GeneratedChoice]:
            replies = ToolReplies(
                plan=plan,
                batcher=batcher,
                scoring=self.batcher,
                grader=grader,
                charge=lambda usage: self._charge(plan, usage),
            )
            reviewer = partial(review, number) if review is not None else None
            return replies.choice(choice_seed(plan.seed, number), self.guard, reviewer)

        return await gather_all([choice(number) for number in range(plan.n)])

    def _plain_choice(
        self, plan: Plan, session: RequestSession, result: SampleResult, number: int
    ) -> GeneratedChoice:
        completion = result.completions[number]
        tokens = DrawnTokens.of(completion, result)
        text = session.visible(completion.text)
        content: dict[str, Any] = {"text": text, "reasoning": completion.reasoning}
        if completion.tool_calls:
            content = {
                "messages": (
                    Message(
                        role="assistant",
                        content=text or None,
                        tool_calls=completion.tool_calls,
                        reasoning=completion.reasoning,
                    ),
                )
            }
        usage = Usage(completion_tokens=completion.tokens)
        if number == 0:  # the cost that samples share is counted with the first
            usage = result.usage.model_copy(update={"completion_tokens": completion.tokens})
        trace = Trace(
            problem_id=plan.problem.id,
            policy=self.policy.name,
            seed=plan.seed,
            sample=number,
            finish_reason=completion.finish_reason,
            **content,
        )
        search_result = SearchResult(
            problem_id=plan.problem.id,
            method=plan.strategy.name,
            seed=plan.seed,
            candidates=(trace,),
            scores=(),
            values=(None,),
            weights=(1,),
            rule=FIRST,
            chosen=0,
            usage=usage,
            counts=SearchCounts(sampled=1),
            error=result.error,
        )
        return GeneratedChoice(
            result=search_result,
            text=text,
            finish_reason=completion.finish_reason,
            tool_calls=completion.tool_calls,
            reasoning=completion.reasoning.readable or None if completion.reasoning else None,
            tokens={0: tokens} if tokens is not None else {},
        )

    async def _search(
        self, plan: Plan, number: int, grader: Grader, on_text: OnText | None
    ) -> GeneratedChoice:
        search = plan.strategy.search
        assert search is not None  # noqa: S101 - for the type checker

        def show(text: str) -> None:
            if on_text and plan.abstain_below is None:
                on_text(number, text)

        session = RequestSession(
            self.batcher,
            separator=plan.steps.separator,
            max_tokens=plan.max_tokens,
            stop=plan.stop,
            stream_mode=plan.strategy.stream_mode,
            on_text=show,
            start="".join(plan.initial_steps),
        )
        if not plan.strategy.needs_scorer:
            session.scorer = None
        space = Continuation(
            plan.problem,
            session,
            steps=plan.steps,
            aggregation=plan.aggregation,
            grader=grader,
            seed=choice_seed(plan.seed, number),
        )
        space.begin(plan.initial_steps)
        try:
            leaves = await search.explore(space)
        finally:
            self._charge(plan, session.policy_usage + session.scorer_usage)

        def conclusion() -> GeneratedChoice:
            result = conclude(space, search.name, leaves, search.rule)
            return _with_tree(_chosen(result, session, plan.abstain_below), space, leaves)

        choice = await grader.checker.run(conclusion)  # other requests need not wait for it
        if choice.result.chosen is None and choice.result.error is not None:
            raise policy_failure(choice.result.error)
        return choice


class Continuation(Space):
    """A space whose solutions all begin with the same steps."""

    _start: Prefix | None = None

    def begin(self, steps: Sequence[str]) -> None:
        """Let solutions begin with ``steps``."""
        if steps:
            self._start = self.tree.insert(list(steps))[-1]

    @property
    def root(self) -> Prefix:
        """Where searches begin."""
        return self._start or self.tree.root


def _chosen(result: SearchResult, session: RequestSession, abstain_below: float | None) -> GeneratedChoice:
    if result.chosen is None:
        reason = _no_solution(result)
        return GeneratedChoice(result=result, text="", finish_reason=CONTENT_FILTER, withheld=reason)
    trace, value = result.candidates[result.chosen], result.values[result.chosen]
    withheld = None
    if abstain_below is not None and (value is None or value < abstain_below):
        score = "has no score" if value is None else f"scores {value:.3f}"
        withheld = f"the best solution {score}, and {abstain_below:g} is required"
    return GeneratedChoice(
        result=result,
        text=session.visible(trace.text or ""),
        finish_reason=trace.finish_reason or "length",
        withheld=withheld,
    )


def _no_solution(result: SearchResult) -> str:
    """Why a search that nothing went wrong with has no candidate."""
    drawn = result.counts.sampled
    if not drawn:
        return "no solution: the search drew no step"
    times = "once" if drawn == 1 else f"{drawn} times"
    return (
        f"no solution: the policy was asked {times} and wrote none; check that it can solve such problems, "
        "and that the prompt has the form that it expects"
    )


def _with_tree(choice: GeneratedChoice, space: Space, leaves: Sequence[Prefix]) -> GeneratedChoice:
    used = {node for leaf in leaves for node in leaf.path()}
    dropped = tuple(place for place, node in enumerate(space.tree) if node.text and node not in used)
    return replace(choice, tree=save_tree(space, choice.result), dropped=dropped) if dropped else choice


def choice_seed(seed: int, number: int) -> int:
    """Seed of a choice: that of the request for the first, a hash of both for the others."""
    return seed if number == 0 else int(content_id("choice seed", seed, number), 16) % 2**31


async def gather_all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
