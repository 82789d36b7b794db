"""Answers to requests with tools: whole messages, chosen by the strategy and checked by the guard."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from surefoot.answers import AnswerChecker, Grader, Solution, group_equal
from surefoot.batching import Batcher
from surefoot.guard import Guard, GuardedReply, guarded_reply
from surefoot.guard.loop import Reviewer
from surefoot.protocols import Candidate, Completion, ProblemTrace, SampleRequest
from surefoot.records import Message, StepScores, Trace, Usage, as_json, content_id
from surefoot.scores import trace_score
from surefoot.search.method import SearchCounts, SearchResult
from surefoot.search.selection import FIRST, SELECTORS
from surefoot.segment import segment_trace
from surefoot.server.gateway.plan import CONTENT_FILTER, GeneratedChoice, Plan
from surefoot.server.gateway.records import DrawnTokens
from surefoot.server.gateway.upstream import policy_failure


@dataclass(frozen=True, kw_only=True)
class ToolReplies:
    """Draws the next messages of one run with tools: best-of-N and votes draw them at once, accept-reject one
    after another. A message is scored as the steps that it adds to the run."""

    plan: Plan
    batcher: Batcher
    """Its policy sends the tools along."""
    scoring: Batcher
    grader: Grader
    charge: Callable[[Usage], None]
    """Called with what was spent, also by draws that fail."""
    draws: list[_Draw] = field(default_factory=list)

    async def choice(self, seed: int, guard: Guard | None, review: Reviewer | None) -> GeneratedChoice:
        """One answer. Raises :class:`ApiError` where the policy failed."""

        async def ask(run: tuple[Message, ...], draw: int) -> Message:
            made = await self._draw(run, seed if draw == 0 else _draw_seed(seed, draw))
            self.draws.append(made)
            return made.reply

        if guard is None:
            reply = GuardedReply(message=await ask(self.plan.messages, 0), decisions=())
        else:
            reply = await guarded_reply(guard, ask, self.plan.messages, self.plan.tools, review=review)
            for decision in reply.decisions:
                self.charge(decision.usage)
        return self._conclusion(seed, reply, guarded=guard is not None)

    async def _draw(self, run: tuple[Message, ...], seed: int) -> _Draw:
        strategy, draw = self.plan.strategy, _Draw(seed=seed)
        for attempt in range(strategy.attempts):
            await self._add(draw, run, first=attempt * strategy.draws)
            if strategy.threshold is not None and draw.accepted(strategy.threshold):
                draw.chosen = len(draw.traces) - 1
                return draw
        if strategy.search is not None:
            rule = "best_of_n" if strategy.threshold is not None else strategy.search.rule
            votes = await self.grader.checker.run(lambda: _votes(draw.traces, self.grader.checker))
            pairs = zip(votes, draw.values, strict=True)
            draw.chosen = SELECTORS[rule].select([Candidate(answer=vote, score=v) for vote, v in pairs])
        return draw

    async def _add(self, draw: _Draw, run: tuple[Message, ...], first: int) -> None:
        """Draw further messages, and score them."""
        plan = self.plan
        request = SampleRequest(
            prompt=run,
            n=plan.strategy.draws,
            first=first,
            seed=draw.seed,
            sampling=replace(plan.steps.sampling, stop=plan.stop),
            logprobs=plan.logprobs,
        )
        [result] = await self.batcher.sample([request])
        self.charge(result.usage)
        draw.usage += result.usage
        if len(result.completions) < request.n:
            raise policy_failure(result.error or "policy: it returned fewer samples than requested")
        texts = [Solution(text=one.text, finish_reason=one.finish_reason) for one in result.completions]
        grades = await self.grader.checker.run(lambda: self.grader.grade(texts, [None] * len(texts)))
        new = [
            self._trace(run, completion, draw.seed, first + number, grade.answer)
            for number, (completion, grade) in enumerate(zip(result.completions, grades, strict=True))
        ]
        draw.traces += new
        draw.tokens += [DrawnTokens.of(one, result) for one in result.completions]
        draw.first_steps += [sum(step.message != len(run) for step in trace.steps) for trace in new]
        if not plan.strategy.needs_scorer:
            draw.values += [None] * len(new)
            return
        records = await self.scoring.score([ProblemTrace(problem=plan.problem, trace=one) for one in new])
        for record in records:
            self.charge(record.usage)
            draw.usage += record.usage
        draw.scores += records
        draw.values += [
            trace_score(record.scores[at:], plan.aggregation)
            for record, at in zip(records, draw.first_steps[-len(new) :], strict=True)
        ]

    def _trace(
        self, run: tuple[Message, ...], one: Completion, seed: int, sample: int, answer: str | None
    ) -> Trace:
        reply = Message(
            role="assistant",
            content=one.text or None,
            tool_calls=one.tool_calls,
            reasoning=one.reasoning,
        )
        return segment_trace(
            Trace(
                problem_id=self.plan.problem.id,
                messages=(*run, reply),
                tools=self.plan.tools,
                answer=None if one.tool_calls else answer,
                policy=self.batcher.policy.name,
                seed=seed,
                sample=sample,
                finish_reason=one.finish_reason,
            )
        )

    def _conclusion(self, seed: int, reply: GuardedReply, *, guarded: bool) -> GeneratedChoice:
        """The answer with all messages that were drawn for it, those that the guard held back among them."""
        last = self.draws[-1]
        before = sum(len(draw.traces) for draw in self.draws[:-1])
        chosen = before + last.chosen
        reasons, place = {}, 0
        for draw, decision in zip(self.draws, reply.decisions, strict=False):
            if decision.action != "release":
                reasons[place + draw.chosen] = f"guard: {decision.action}: {decision.reason}"
            place += len(draw.traces)
        values = [value for draw in self.draws for value in draw.values]
        tokens = [one for draw in self.draws for one in draw.tokens]
        rule = getattr(self.plan.strategy.search, "rule", FIRST)
        spent = [draw.usage for draw in self.draws] + [decision.usage for decision in reply.decisions]
        result = SearchResult(
            problem_id=self.plan.problem.id,
            method=self.plan.strategy.name,
            seed=seed,
            candidates=tuple(trace for draw in self.draws for trace in draw.traces),
            scores=tuple(record for draw in self.draws for record in draw.scores),
            values=tuple(values),
            weights=(1,) * len(values),
            rule=rule,
            chosen=chosen,
            usage=sum(spent, Usage()),
            counts=SearchCounts(sampled=len(values)),
        )
        said = last.reply
        choice = GeneratedChoice(
            result=result,
            text=said.content or "",
            finish_reason=result.candidates[chosen].finish_reason or "stop",
            tool_calls=said.tool_calls,
            reasoning=said.readable_reasoning or None,
            first_step=last.first_steps[last.chosen],
            decisions=reply.decisions,
            guarded=guarded,
            reasons=reasons,
            tokens={place: one for place, one in enumerate(tokens) if one is not None},
        )
        withheld, value, least = reply.blocked, values[chosen], self.plan.abstain_below
        if withheld is None and least is not None and (value is None or value < least):
            score = "has no score" if value is None else f"scores {value:.3f}"
            withheld = f"the best message {score}, and {least:g} is required"
        if withheld is None:
            return choice
        return replace(
            choice, text="", tool_calls=(), reasoning=None, finish_reason=CONTENT_FILTER, withheld=withheld
        )


@dataclass(kw_only=True)
class _Draw:
    """The messages drawn at one place of a run, with the steps that each adds to it."""

    seed: int
    traces: list[Trace] = field(default_factory=list)
    tokens: list[DrawnTokens | None] = field(default_factory=list)
    scores: list[StepScores] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    first_steps: list[int] = field(default_factory=list)
    """Number of the first step of each that is new."""
    chosen: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def reply(self) -> Message:
        return self.traces[self.chosen].messages[-1]

    def accepted(self, threshold: float) -> bool:
        """Whether all new steps of the latest message reach the threshold."""
        new = self.scores[-1].scores[self.first_steps[-1] :]
        return all(score is not None and score >= threshold for score in new)


def _votes(traces: Sequence[Trace], checker: AnswerChecker) -> list[str | None]:
    """What messages agree in: their calls, whatever their words and ids; without calls, the final answer."""
    answers = group_equal([trace.answer for trace in traces], checker)
    calls = [trace.messages[-1].tool_calls for trace in traces]
    return [
        as_json([(call.name, _parsed(call.arguments)) for call in made]) if made else answer
        for made, answer in zip(calls, answers, strict=True)
    ]


def _parsed(arguments: str) -> Any:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _draw_seed(seed: int, draw: int) -> int:
    return int(content_id("draw seed", seed, draw), 16) % 2**31
