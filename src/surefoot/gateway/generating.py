"""From a task to its answers: the policy alone, or a search through the common batcher."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from surefoot.answers import Grader
from surefoot.batching import Batcher
from surefoot.errors import PolicyError, ScoreError
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.session import RequestSession
from surefoot.gateway.tasks import Accepted, Choice, Generation, Task
from surefoot.gateway.upstream import MAX_CHARACTERS, TakesExtraBody, UpstreamPolicy
from surefoot.protocols import SampleRequest, SampleResult
from surefoot.records import Message, Trace, Usage, content_id
from surefoot.search.result import FIRST, SearchCounts, SearchResult, conclude
from surefoot.search.saved_tree import save_tree
from surefoot.search.space import Prefix, Space

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Writes answers with the policy and the scorer of ``batcher``. ``spent`` is told of all tokens, those of
    work that failed or was cancelled among them."""

    batcher: Batcher
    policy: UpstreamPolicy
    grader: Grader
    spent: Callable[[Usage], None]

    async def generate(self, task: Task, accepted: Accepted | None = None) -> Generation:
        """All choices of a task. Raises :class:`ApiError`."""
        try:
            if task.strategy.search is None:
                choices = await self._plain(task, accepted)
            else:
                numbers = range(task.n)
                choices = await together([self._search(task, number, accepted) for number in numbers])
        except PolicyError as error:
            raise policy_failure(str(error)) from error
        except ScoreError as error:
            raise ApiError(502, f"the reward model failed: {error}", code="scorer_failed") from error
        return Generation(
            policy=self.batcher.policy.name,
            scorer=getattr(self.batcher.scorer, "name", None) if task.strategy.needs_scorer else None,
            strategy=task.strategy.name,
            seed=task.seed,
            choices=tuple(choices),
        )

    def _charge(self, task: Task, usage: Usage) -> None:
        task.account.usage += usage
        self.spent(usage)

    async def _plain(self, task: Task, accepted: Accepted | None) -> list[Choice]:
        batcher = self.batcher
        if task.extra_body:
            if not isinstance(self.policy.policy, TakesExtraBody):
                raise ApiError(400, f"policy {self.policy.name!r} takes no tools", code="unsupported")
            more = self.policy.policy.with_extra_body(task.extra_body)
            batcher = Batcher(UpstreamPolicy(more), overlap=True)
        session = RequestSession(
            batcher, separator=task.steps.separator, max_tokens=task.max_tokens, stop=task.stop
        )
        request = SampleRequest(
            prompt=task.steps.prompt.render(task.problem),
            n=task.n,
            seed=task.seed,
            sampling=task.steps.sampling,
        )
        try:
            if accepted is None:
                [result] = await session.sample([request])
            else:
                result = await session.stream(request, accepted)
        finally:
            self._charge(task, session.policy_usage)
        if len(result.completions) < task.n:
            raise policy_failure(result.error or "policy: fewer samples came than were asked for")
        return [self._written(task, session, result, number) for number in range(task.n)]

    def _written(self, task: Task, session: RequestSession, result: SampleResult, number: int) -> Choice:
        drawn = result.completions[number]
        text = session.visible(drawn.text)
        content: dict[str, Any] = {"text": text}
        if drawn.tool_calls:
            content = {
                "messages": (Message(role="assistant", content=text or None, tool_calls=drawn.tool_calls),)
            }
        usage = Usage(completion_tokens=drawn.tokens)
        if number == 0:  # what all samples share is the first one's
            usage = result.usage.model_copy(update={"completion_tokens": drawn.tokens})
        trace = Trace(
            problem_id=task.problem.id,
            policy=self.policy.name,
            seed=task.seed,
            sample=number,
            finish_reason=drawn.finish_reason,
            **content,
        )
        found = SearchResult(
            problem_id=task.problem.id,
            method=task.strategy.name,
            seed=task.seed,
            candidates=(trace,),
            scores=(),
            values=(None,),
            weights=(1,),
            rule=FIRST,
            chosen=0,
            usage=usage,
            counts=SearchCounts(drawn=1),
            error=result.error,
        )
        return Choice(result=found, text=text, finish_reason=drawn.finish_reason, tool_calls=drawn.tool_calls)

    async def _search(self, task: Task, number: int, accepted: Accepted | None) -> Choice:
        search = task.strategy.search
        assert search is not None  # noqa: S101 - for the type checker

        def show(text: str) -> None:
            if accepted and task.abstain_below is None:
                accepted(number, text)

        session = RequestSession(
            self.batcher,
            separator=task.steps.separator,
            max_tokens=task.max_tokens,
            stop=task.stop,
            stream_mode=task.strategy.stream_mode,
            on_text=show,
            start="".join(task.kept),
        )
        if not task.strategy.needs_scorer:
            session.scorer = None
        space = Continuation(
            task.problem,
            session,
            steps=task.steps,
            aggregation=task.aggregation,
            grader=self.grader,
            seed=choice_seed(task.seed, number),
        )
        space.begin(task.kept)
        try:
            leaves = await search.explore(space)
        finally:
            self._charge(task, session.policy_usage + session.scorer_usage)

        def conclusion() -> Choice:
            result = conclude(space, search.name, leaves, search.rule)
            return _with_tree(_chosen(result, session, task.abstain_below), space, leaves)

        choice = await asyncio.to_thread(conclusion)  # others need not wait for it
        if choice.result.chosen is None and choice.result.error is not None:
            raise policy_failure(choice.result.error)
        return choice


class Continuation(Space):
    """A space whose solutions all begin with some steps that are given."""

    _start: Prefix | None = None

    def begin(self, steps: Sequence[str]) -> None:
        """Let solutions begin with ``steps``."""
        if steps:
            self._start = self.tree.insert(list(steps))[-1]

    @property
    def root(self) -> Prefix:
        """Where searches begin."""
        return self._start or self.tree.root


def _chosen(result: SearchResult, session: RequestSession, abstain_below: float | None) -> Choice:
    if result.chosen is None:
        return Choice(result=result, text="", finish_reason="stop")
    trace, value = result.candidates[result.chosen], result.values[result.chosen]
    withheld = None
    if abstain_below is not None and (value is None or value < abstain_below):
        got = "has no score" if value is None else f"scores {value:.3f}"
        withheld = f"the best solution found {got}, and {abstain_below:g} was asked for"
    return Choice(
        result=result,
        text=session.visible(trace.text or ""),
        finish_reason=trace.finish_reason or "length",
        withheld=withheld,
    )


def _with_tree(choice: Choice, space: Space, leaves: Sequence[Prefix]) -> Choice:
    kept = {node for leaf in leaves for node in leaf.path()}
    dropped = tuple(place for place, node in enumerate(space.tree) if node.text and node not in kept)
    return replace(choice, tree=save_tree(space, choice.result), dropped=dropped) if dropped else choice


def choice_seed(seed: int, number: int) -> int:
    """Seed of a choice: the request's own for the first, a hash of both for the others."""
    return seed if number == 0 else int(content_id("choice seed", seed, number), 16) % 2**31


def policy_failure(error: str) -> ApiError:
    """What a failed request to the policy means to the client, who is told ``error``."""
    error = error[:MAX_CHARACTERS]
    status = re.match(r"server: status (4\d\d)", error)
    if error.startswith("policy: ") or (status and status[1] in ("400", "413", "422")):
        return ApiError(400, f"the policy refused the request: {error}", code="policy_refused")
    return ApiError(502, f"the policy failed: {error}", code="policy_failed")


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; the first error ends the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
