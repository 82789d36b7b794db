"""Messages with tools: sampled whole, checked by the guard, and shown only after their release."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from surefoot.answers import AnswerChecker, Grader, Solution, group_equal
from surefoot.concurrency import CALLER
from surefoot.guard import Guard, GuardDecision, GuardedReply, Review, guarded_reply
from surefoot.guard.loop import Reviewer
from surefoot.messages import canonical_arguments
from surefoot.protocols import Candidate, ProblemTrace, SampleRequest
from surefoot.records import Message, Reasoning, Trace, Usage, as_json, content_id
from surefoot.scores import TraceRule, step_score, trace_score
from surefoot.search.best_of_n_search import WholeSolutions
from surefoot.search.method import SearchCounts
from surefoot.search.resample import StepResampling
from surefoot.search.selection import FIRST, SELECTORS
from surefoot.segment import segment_trace
from surefoot.server.gateway.choice import Choice, below, check_complete, choice_seed, in_channels
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.upstream import Upstream, gather_all
from surefoot.server.records import GatewayCandidate, SampledTokens

ChoiceReviewer = Callable[
    [int, tuple[Message, ...], Message, GuardDecision], Awaitable[tuple[Review | None, str | None]]
]
"""Like :data:`surefoot.guard.loop.Reviewer`, with the number of the choice as the first argument."""


async def tool_choices(
    plan: Plan, upstream: Upstream, grader: Grader, guard: Guard | None, review: ChoiceReviewer | None
) -> list[Choice]:
    """All choices of a plan with tools, which ``upstream`` passes on; ``review`` decides about calls that the
    guard holds. Raises :class:`ApiError`."""
    replies = [
        _ToolReplies(plan=plan, number=number, upstream=upstream, grader=grader) for number in range(plan.n)
    ]
    return await gather_all(
        [
            reply.choice(guard, partial(review, reply.number) if review is not None else None)
            for reply in replies
        ]
    )


@dataclass(kw_only=True)
class _Draw:
    """The messages sampled at one position of a run."""

    replies: list[GatewayCandidate] = field(default_factory=list)
    """Each is the last message of its trace."""
    chosen: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def best(self) -> GatewayCandidate:
        return self.replies[self.chosen]

    def accepts_last(self, threshold: float, how: TraceRule) -> bool:
        """Whether the last message has steps, and all reach the threshold."""
        values = [step_score(score, how) for score in self.replies[-1].new_scores]
        return bool(values) and all(value is not None and value >= threshold for value in values)

    def release(self, message: Message) -> None:
        """Put the message that the guard released in place of the sampled one."""
        trace = self.best.trace
        messages = (*trace.messages[:-1], message)
        released = segment_trace(trace.model_copy(update={"messages": messages, "steps": ()}))
        self.replies[self.chosen] = self.best.model_copy(update={"trace": released})


@dataclass(frozen=True, kw_only=True)
class _ToolReplies:
    """Samples the next messages of one run with tools: best-of-n and votes sample them at once, resampling
    one after another. A message is scored by the steps that it adds to the run."""

    plan: Plan
    number: int
    upstream: Upstream
    """Its policy receives the tools."""
    grader: Grader
    draws: list[_Draw] = field(default_factory=list)

    async def choice(self, guard: Guard | None, review: Reviewer | None) -> Choice:
        """One answer. Raises :class:`ApiError` if the policy fails."""

        first_seed = choice_seed(self.plan.seed, self.number)

        async def ask(run: tuple[Message, ...], draw: int) -> Message:
            seed = first_seed if draw == 0 else int(content_id("draw seed", first_seed, draw), 16) % 2**31
            self.draws.append(await self._draw(run, seed))
            return self.draws[-1].best.trace.messages[-1]

        if guard is None:
            reply = GuardedReply(message=await ask(self.plan.messages, 0), decisions=())
        else:
            reply = await guarded_reply(
                guard,
                ask,
                self.plan.messages,
                self.plan.tools,
                review=review,
                caller=CALLER.get(),
                conversation=self.plan.session,
                request=f"{self.number} {self.plan.request}",
            )
            if reply.message is not None:
                self.draws[-1].release(reply.message)
            for decision in reply.decisions:
                self.plan.usage += decision.usage
        return self._choice(reply, guarded=guard is not None)

    async def _draw(self, run: tuple[Message, ...], seed: int) -> _Draw:
        strategy, draw, threshold = self.plan.strategy, _Draw(), self.plan.threshold
        attempts = 1 + strategy.retries if isinstance(strategy, StepResampling) else 1
        count = strategy.n if isinstance(strategy, WholeSolutions) else 1
        for attempt in range(attempts):
            await self._sample(draw, run, seed, attempt * count, count)
            if threshold is not None and draw.accepts_last(threshold, self.plan.aggregation):
                draw.chosen = len(draw.replies) - 1
                return draw
        rule = "best_of_n" if threshold is not None else strategy.rule
        if rule != FIRST:
            votes = await self.grader.checker.run(lambda: _votes(draw.replies, self.grader.checker))
            candidates = [
                Candidate(
                    answer=vote,
                    score=reply.score,
                    refuted=reply.scores is not None and reply.scores.refuted(reply.first_step),
                )
                for vote, reply in zip(votes, draw.replies, strict=True)
            ]
            draw.chosen = SELECTORS[rule].select(candidates)
        return draw

    async def _sample(self, draw: _Draw, run: tuple[Message, ...], seed: int, first: int, count: int) -> None:
        plan, checker = self.plan, self.grader.checker
        request = SampleRequest(
            prompt=run,
            n=count,
            first=first,
            seed=seed,
            sampling=plan.sampling,
            logprobs=plan.logprobs,
        )
        [result] = await self.upstream.sample([request])
        plan.usage += result.usage
        draw.usage += result.usage
        check_complete(result, request.n)
        texts = [Solution(text=new.text, finish_reason=new.finish_reason) for new in result.completions]
        grades = await checker.run(lambda: self.grader.grade(texts, [None] * len(texts)))
        replies = []
        for number, (completion, grade) in enumerate(zip(result.completions, grades, strict=True)):
            thought, text = in_channels(plan, completion.text, streamed=False)
            message = Message(
                role="assistant",
                content=text or None,
                tool_calls=completion.tool_calls,
                reasoning=completion.reasoning or (Reasoning(text=thought) if thought else None),
            )
            trace = segment_trace(
                Trace(
                    problem_id=plan.problem.id,
                    messages=(*run, message),
                    tools=plan.tools,
                    answer=None if completion.tool_calls else grade.answer,
                    policy=self.upstream.policy.name,
                    seed=seed,
                    sample=first + number,
                    finish_reason=completion.finish_reason,
                )
            )
            tokens = SampledTokens.of(completion, result) if plan.session is not None else None
            replies.append(GatewayCandidate(trace=trace, chosen=False, choice=self.number, tokens=tokens))
        if plan.strategy.needs_scorer:
            replies = await self._scored(draw, replies)
        draw.replies += replies

    async def _scored(self, draw: _Draw, replies: Sequence[GatewayCandidate]) -> list[GatewayCandidate]:
        items = [ProblemTrace(problem=self.plan.problem, trace=reply.trace) for reply in replies]
        scored = []
        for reply, record in zip(replies, await self.upstream.score(items), strict=True):
            self.plan.usage += record.usage
            draw.usage += record.usage
            value = trace_score(record.scores[reply.first_step :], self.plan.aggregation)
            scored.append(reply.model_copy(update={"scores": record, "score": value}))
        return scored

    def _choice(self, reply: GuardedReply, *, guarded: bool) -> Choice:
        """The answer with all sampled messages, including those that the guard held back."""
        plan, best = self.plan, self.draws[-1].best
        withheld = reply.blocked or below(plan.abstain_below, best.score, "message")
        rule = plan.strategy.rule
        candidates: list[GatewayCandidate] = []
        chosen, blocked = None, False
        for draw, decision in zip_longest(self.draws, reply.decisions):
            for answer in draw.replies:
                reason: str | None = f"not chosen by {rule}"
                if answer is best:
                    chosen, reason = len(candidates), withheld
                if answer is draw.best and decision is not None and decision.action != "release":
                    reason = f"guard: {decision.action}: {decision.reason}"
                    blocked = answer is best
                is_chosen = answer is best and withheld is None
                candidates.append(answer.model_copy(update={"chosen": is_chosen, "reason": reason}))
        spent = [draw.usage for draw in self.draws] + [decision.usage for decision in reply.decisions]
        message = best.trace.messages[-1]
        return Choice(
            candidates=tuple(candidates),
            chosen=chosen,
            seed=choice_seed(plan.seed, self.number),
            rule=rule,
            usage=sum(spent, Usage()),
            counts=SearchCounts(sampled=len(candidates)),
            text="" if withheld else message.content or "",
            ending="filtered" if withheld else best.trace.ending,
            tool_calls=() if withheld else message.tool_calls,
            reasoning=None if withheld else message.readable_reasoning or None,
            withheld=withheld,
            decisions=reply.decisions,
            guarded=guarded,
            blocked=blocked,
        )


def _votes(replies: Sequence[GatewayCandidate], checker: AnswerChecker) -> list[str | None]:
    """What messages vote for: their calls, whatever their texts and ids; without calls, the final answer."""
    answers = group_equal([reply.trace.answer for reply in replies], checker)
    return [
        as_json([(call.name, _parsed(call.arguments)) for call in calls]) if calls else answer
        for calls, answer in zip(
            (reply.trace.messages[-1].tool_calls for reply in replies), answers, strict=True
        )
    ]


def _parsed(arguments: str) -> Any:
    try:
        return canonical_arguments(arguments)
    except ValueError:
        return arguments
