"""From a plan to its answers: the policy alone, a search through the shared batcher, or guarded messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

from surefoot.answers import AnswerChecker, Grader, Solution, final_answer, group_equal
from surefoot.answers.checker import plain_words
from surefoot.batching import Batcher
from surefoot.concurrency import CALLER
from surefoot.errors import PolicyError, ScoreError
from surefoot.guard import Guard, GuardDecision, GuardedReply, Review, guarded_reply
from surefoot.guard.loop import Reviewer
from surefoot.maths import read_quantity
from surefoot.messages import canonical_arguments
from surefoot.protocols import Candidate, ProblemTrace, SampleRequest, SampleResult, TakesExtraBody
from surefoot.records import (
    Ending,
    Message,
    Reasoning,
    ToolCall,
    Trace,
    Usage,
    as_json,
    content_id,
    trusted_copy,
)
from surefoot.scores import TraceRule, step_score, trace_score
from surefoot.search.method import Finish, SearchCounts, SearchResult, conclude, finish_of
from surefoot.search.saved_tree import SavedTree, save_tree
from surefoot.search.selection import FIRST, SELECTORS
from surefoot.search.space import Prefix, Space
from surefoot.segment import ChannelReader, channels_of, segment_trace
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import Plan
from surefoot.server.gateway.request_session import RequestSession
from surefoot.server.gateway.upstream import FairBatcher, UpstreamPolicy, gather_all, policy_failure
from surefoot.server.records import GatewayCandidate, SampledTokens

T = TypeVar("T")
SHORT_CHARACTERS = 4000
"""Texts up to this length are checked and compared in the event loop."""
OnText = Callable[[int, str, str], None]
"""Called with the number of a choice, and with new reasoning and new text of it that are certain."""
ChoiceReviewer = Callable[
    [int, tuple[Message, ...], Message, GuardDecision], Awaitable[tuple[Review | None, str | None]]
]
"""Like :data:`surefoot.guard.loop.Reviewer`, with the number of the choice as the first argument."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer, with all candidates that it was chosen from."""

    candidates: tuple[GatewayCandidate, ...]
    chosen: int | None
    """Index of the chosen candidate; ``None`` without a solution."""
    seed: int
    rule: str
    """How the candidate was chosen, see :data:`surefoot.search.selection.Rule`."""
    usage: Usage
    counts: SearchCounts
    text: str
    """The chosen candidate's text before a stop text; empty if it is withheld, as its calls and reasoning."""
    ending: Ending
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    """The chosen candidate's visible reasoning, which the text does not contain."""
    error: str | None = None
    withheld: str | None = None
    """Why the text must not be shown, or why there is none."""
    tree: SavedTree | None = None
    """All steps that were sampled, if some were dropped."""
    dropped: tuple[int, ...] = ()
    """Nodes of the tree that no candidate contains."""
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


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Writes answers with the policy and the scorer of ``batcher``. ``on_usage`` is called with all tokens,
    including the tokens of failed and cancelled work."""

    batcher: FairBatcher
    policy: UpstreamPolicy
    grader: Grader
    on_usage: Callable[[Usage], None]
    guard: Guard | None = None
    """Checks tool calls before they are released."""
    opened: bool = False
    """Whether the policy's template opens the reasoning, so that its texts begin within it."""

    async def generate(
        self, plan: Plan, on_text: OnText | None = None, review: ChoiceReviewer | None = None
    ) -> list[Choice]:
        """All choices of a plan; ``review`` decides about calls that the guard holds.

        Raises :class:`ApiError`.
        """
        try:
            with_tools = bool(plan.tools) and (plan.strategy.search is not None or self.guard is not None)
            if plan.strategy.search is None and not with_tools:
                return await self._plain(plan, on_text)
            if with_tools:
                return await self._with_tools(plan, self.grader, review)
            searches = [self._search(plan, number, self.grader, on_text) for number in range(plan.n)]
            return await gather_all(searches)
        except PolicyError as error:
            raise policy_failure(str(error)) from error
        except ScoreError as error:
            raise ApiError(502, f"the reward model failed: {error}", code="scorer_failed") from error

    def _charge(self, plan: Plan, usage: Usage) -> None:
        plan.meter.usage += usage
        self.on_usage(usage)

    async def _plain(self, plan: Plan, on_text: OnText | None) -> list[Choice]:
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
                show = self._in_channels(plan, on_text)
                result = await session.stream(request, show)
        finally:
            self._charge(plan, session.policy_usage)
        _check_complete(result, plan.n)
        if self.guard is not None and any(completion.tool_calls for completion in result.completions):
            raise ApiError(502, "the policy calls tools, and the request has none", code="policy_failed")
        streamed = on_text is not None
        return [self._plain_choice(plan, session, result, number, streamed) for number in range(plan.n)]

    def _channels(self, plan: Plan, text: str, *, streamed: bool) -> tuple[str, str]:
        """Reasoning and answer of a text; a prompt's continuation is not divided: it may begin in either.

        What a stream has sent cannot become reasoning by a closing tag that follows.
        """
        if not plan.messages:
            return "", text
        channels = channels_of(text, inside=self.opened if streamed or self.opened else None)
        return channels.reasoning, channels.answer

    def _in_channels(self, plan: Plan, on_text: OnText) -> Callable[[int, str], None]:
        """Divide new text before it is shown."""
        readers: dict[int, ChannelReader] = {}

        def show(number: int, text: str) -> None:
            if not plan.messages:
                on_text(number, "", text)
                return
            reader = readers.setdefault(number, ChannelReader(inside=self.opened))
            on_text(number, *reader.add(text))

        return show

    def _plain_choice(
        self, plan: Plan, session: RequestSession, result: SampleResult, number: int, streamed: bool
    ) -> Choice:
        completion = result.completions[number]
        thought, text = self._channels(plan, session.visible(completion.text), streamed=streamed)
        reasoning = completion.reasoning or (Reasoning(text=thought) if thought else None)
        content: dict[str, Any] = {"text": text, "reasoning": reasoning}
        if calls := completion.tool_calls:
            reply = Message(role="assistant", content=text or None, tool_calls=calls, reasoning=reasoning)
            content = {"messages": (reply,)}
        usage = Usage(completion_tokens=completion.tokens)
        if number == 0:  # the shared cost of the samples is counted with the first
            usage = trusted_copy(result.usage, {"completion_tokens": completion.tokens})
        trace = Trace(
            problem_id=plan.problem.id,
            policy=self.policy.name,
            seed=plan.seed,
            sample=number,
            finish_reason=completion.finish_reason,
            **content,
        )
        tokens = SampledTokens.of(completion, result) if plan.session is not None else None
        return Choice(
            candidates=(GatewayCandidate(trace=trace, chosen=True, choice=number, tokens=tokens),),
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

    def _tool_batcher(self, plan: Plan) -> Batcher:
        if not isinstance(self.policy.policy, TakesExtraBody):
            raise ApiError(400, f"policy {self.policy.name!r} does not support tools", code="unsupported")
        return self.batcher.with_tools(UpstreamPolicy(self.policy.policy.with_extra_body(plan.extra_body)))

    async def _with_tools(self, plan: Plan, grader: Grader, review: ChoiceReviewer | None) -> list[Choice]:
        """Whole messages, checked; no text is shown before it is released."""
        batcher = self._tool_batcher(plan)

        def choice(number: int) -> Coroutine[Any, Any, Choice]:
            replies = _ToolReplies(
                plan=plan,
                number=number,
                seed=choice_seed(plan.seed, number),
                batcher=batcher,
                scoring=self.batcher,
                grader=grader,
                charge=partial(self._charge, plan),
                channels=partial(self._channels, plan, streamed=False),
            )
            return replies.choice(self.guard, partial(review, number) if review is not None else None)

        return await gather_all([choice(number) for number in range(plan.n)])

    async def _search(self, plan: Plan, number: int, grader: Grader, on_text: OnText | None) -> Choice:
        search = plan.strategy.search
        assert search is not None  # noqa: S101 - for the type checker

        show = self._in_channels(plan, on_text) if on_text and plan.abstain_below is None else None

        session = RequestSession(
            self.batcher,
            separator=plan.steps.separator,
            max_tokens=plan.max_tokens,
            stop=plan.stop,
            stream_mode=plan.strategy.stream_mode,
            on_text=partial(show, number) if show is not None else None,
        )
        if not plan.strategy.needs_scorer:
            session.scorer = None
        space = Space(
            plan.problem,
            session,
            steps=plan.steps,
            aggregation=plan.aggregation,
            grader=grader,
            seed=choice_seed(plan.seed, number),
        )
        try:
            leaves = await search.explore(space)
        finally:
            self._charge(plan, session.policy_usage + session.scorer_usage)

        def conclusion() -> Choice:
            result = conclude(space, search.name, leaves, search.rule)
            return self._search_choice(result, space, leaves, session, plan, number, on_text is not None)

        if _is_quick({space.solution(leaf) for leaf in leaves}, grader):
            choice = conclusion()
        else:
            choice = await grader.checker.run(conclusion)  # in a thread: other requests go on
        if choice.chosen is None and choice.error is not None:
            raise policy_failure(choice.error)
        return choice

    def _search_choice(
        self,
        result: SearchResult,
        space: Space,
        leaves: Sequence[Prefix],
        session: RequestSession,
        plan: Plan,
        number: int,
        streamed: bool,
    ) -> Choice:
        chosen = result.chosen
        withheld: str | None
        reasoning = text = ""
        ending: Ending = "filtered"
        if chosen is None:
            withheld = _no_solution(result)
        else:
            trace = result.candidates[chosen]
            withheld = _below(plan.abstain_below, result.values[chosen], "solution")
            if withheld is None:
                reasoning, text = self._channels(plan, session.visible(trace.text or ""), streamed=streamed)
            ending = trace.ending if trace.finish_reason else "truncated"
        used = {node for leaf in leaves for node in leaf.path()}
        dropped = tuple(at for at, node in enumerate(space.tree) if node.text and node not in used)
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
            tree=save_tree(space, result) if dropped else None,
            dropped=dropped,
        )


def _check_complete(result: SampleResult, n: int) -> None:
    if len(result.completions) < n:
        raise policy_failure(result.error or "policy: it returned fewer samples than requested")


def _is_quick(solutions: Collection[Solution], grader: Grader) -> bool:
    """Whether a choice is quick: the texts are short, and no answer needs algebra."""
    if sum(len(solution.text) for solution in solutions) > SHORT_CHARACTERS:
        return False
    answers = {final_answer(solution, grader.styles) for solution in solutions} - {None}
    return all(answer and (read_quantity(answer) or plain_words(answer)) for answer in answers)


def _below(threshold: float | None, value: float | None, what: str) -> str | None:
    """Why an answer with this aggregated score is withheld."""
    if threshold is None or (value is not None and value >= threshold):
        return None
    score = "is unscored" if value is None else f"scores {value:.3f}"
    return f"the best {what} {score}, and {threshold:g} is required"


def _no_solution(result: SearchResult) -> str:
    """Why a search found nothing although no request failed."""
    draws = result.counts.sampled
    if not draws:
        return "no solution: the search drew no step"
    times = "once" if draws == 1 else f"{draws} times"
    return (
        f"no solution: the policy was asked {times} and wrote none; check that it can solve such problems, "
        "and that the prompt has the form that it expects"
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
        """Whether all steps of the last message reach the threshold."""
        values = [step_score(score, how) for score in self.replies[-1].new_scores]
        return all(value is not None and value >= threshold for value in values)

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
    seed: int
    batcher: Batcher
    """Its policy receives the tools."""
    scoring: Batcher
    grader: Grader
    channels: Callable[[str], tuple[str, str]]
    """Reasoning and answer of a text."""
    charge: Callable[[Usage], None]
    """Called with all usage, also of draws that fail."""
    draws: list[_Draw] = field(default_factory=list)

    async def choice(self, guard: Guard | None, review: Reviewer | None) -> Choice:
        """One answer. Raises :class:`ApiError` if the policy fails."""

        async def ask(run: tuple[Message, ...], draw: int) -> Message:
            seed = self.seed if draw == 0 else int(content_id("draw seed", self.seed, draw), 16) % 2**31
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
                self.charge(decision.usage)
        return self._choice(reply, guarded=guard is not None)

    async def _draw(self, run: tuple[Message, ...], seed: int) -> _Draw:
        strategy, draw = self.plan.strategy, _Draw()
        for attempt in range(strategy.attempts):
            await self._sample(draw, run, seed, first=attempt * strategy.messages)
            threshold = strategy.threshold
            if threshold is not None and draw.accepts_last(threshold, self.plan.aggregation):
                draw.chosen = len(draw.replies) - 1
                return draw
        rule = "best_of_n" if strategy.threshold is not None else getattr(strategy.search, "rule", FIRST)
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

    async def _sample(self, draw: _Draw, run: tuple[Message, ...], seed: int, first: int) -> None:
        plan, checker = self.plan, self.grader.checker
        request = SampleRequest(
            prompt=run,
            n=plan.strategy.messages,
            first=first,
            seed=seed,
            sampling=replace(plan.steps.sampling, stop=plan.stop),
            logprobs=plan.logprobs,
        )
        [result] = await self.batcher.sample([request])
        self.charge(result.usage)
        draw.usage += result.usage
        _check_complete(result, request.n)
        texts = [Solution(text=new.text, finish_reason=new.finish_reason) for new in result.completions]
        grades = await checker.run(lambda: self.grader.grade(texts, [None] * len(texts)))
        replies = []
        for number, (completion, grade) in enumerate(zip(result.completions, grades, strict=True)):
            thought, text = self.channels(completion.text)
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
                    policy=self.batcher.policy.name,
                    seed=seed,
                    sample=first + number,
                    finish_reason=completion.finish_reason,
                )
            )
            tokens = SampledTokens.of(completion, result) if plan.session is not None else None
            replies.append(GatewayCandidate(trace=trace, chosen=False, choice=self.number, tokens=tokens))
        draw.replies += await self._scored(draw, replies) if plan.strategy.needs_scorer else replies

    async def _scored(self, draw: _Draw, replies: Sequence[GatewayCandidate]) -> list[GatewayCandidate]:
        items = [ProblemTrace(problem=self.plan.problem, trace=reply.trace) for reply in replies]
        scored = []
        for reply, record in zip(replies, await self.scoring.score(items), strict=True):
            self.charge(record.usage)
            draw.usage += record.usage
            value = trace_score(record.scores[reply.first_step :], self.plan.aggregation)
            scored.append(reply.model_copy(update={"scores": record, "score": value}))
        return scored

    def _choice(self, reply: GuardedReply, *, guarded: bool) -> Choice:
        """The answer with all sampled messages, including those that the guard held back."""
        plan, best = self.plan, self.draws[-1].best
        withheld = reply.blocked or _below(plan.abstain_below, best.score, "message")
        rule = getattr(plan.strategy.search, "rule", FIRST)
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
            seed=self.seed,
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


def choice_seed(seed: int, number: int) -> int:
    """Seed of a choice: the request's for the first, a hash of both for the others."""
    return seed if number == 0 else int(content_id("choice seed", seed, number), 16) % 2**31
