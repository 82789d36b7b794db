"""``/v1/score``: step scores and verdicts for solutions that clients send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from surefoot.errors import ScoreError
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace, Usage
from surefoot.scores import TraceRule, aggregate, complete_scores
from surefoot.segment import segment_trace
from surefoot.server.gateway.errors import ApiError, answered
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.images import check_traces
from surefoot.server.gateway.schemas import RequestModel

MAX_STEPS = 2000
"""Steps of one solution."""


class _Exact(RequestModel):
    """Fields are this route's own: one that it does not know would be another question."""

    model_config = ConfigDict(extra="forbid")


class SolutionInput(_Exact):
    """A problem with a solution: its ``steps``, its text in ``solution``, or an agent's run in ``trace``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=MAX_STEPS
    )
    """Exact pieces of the solution, each with the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    """It is cut at blank lines, or at lines where it has none."""
    trace: Trace | None = None
    """A trace record; messages may be in OpenAI's format. Without steps it is segmented."""

    @model_validator(mode="after")
    def _has_one_solution(self) -> Self:
        if [self.steps, self.solution, self.trace].count(None) != 2:
            raise ValueError("give one of 'steps', 'solution' and 'trace'")
        return self

    def item(self) -> ProblemTrace:
        """The problem and its trace with steps. Raises :class:`ApiError`."""
        problem = Problem(text=self.problem)
        if self.steps is not None:
            spans, at = [], 0
            for text in self.steps:
                spans.append(Step(start=at, end=at + len(text)))
                at += len(text)
            trace = Trace(problem_id=problem.id, text="".join(self.steps), steps=tuple(spans))
            return ProblemTrace(problem=problem, trace=trace)
        field = "solution" if self.trace is None else "trace"
        trace = self.trace or Trace(problem_id=problem.id, text=self.solution or "")
        trace = trace if trace.steps else segment_trace(trace)
        if not 0 < len(trace.steps) <= MAX_STEPS:
            message = f"{field}: has {len(trace.steps)} steps, from 1 to {MAX_STEPS} here; cut it less finely"
            raise ApiError(400, message, param=field)
        return ProblemTrace(problem=problem, trace=trace.model_copy(update={"problem_id": problem.id}))


class ScoreRequest(_Exact):
    """Body of ``/v1/score``."""

    model: str | None = Field(default=None, max_length=300)
    """The reward model's name; ``null``: the server's."""
    items: list[SolutionInput] = Field(min_length=1)
    aggregation: TraceRule | None = None
    threshold: float | None = Field(default=None, ge=0, le=1)
    """Steps below it are bad; ``null``: the server's threshold."""


async def score(gateway: Gateway, request: Request, body: ScoreRequest) -> Response:
    """Score each step of each solution, and accept the solution, or find its first bad step."""
    scorer = _required_scorer(gateway, body.model)
    if len(body.items) > gateway.limits.max_items:
        message = f"items: at most {gateway.limits.max_items} are allowed, not {len(body.items)}"
        raise ApiError(400, message, param="items")
    size, how = len(request.state.body), body.aggregation or gateway.aggregation
    threshold = gateway.settings.threshold if body.threshold is None else body.threshold

    traces = [item.trace for item in body.items if item.trace is not None]

    def read() -> list[ProblemTrace]:
        check_traces(traces)
        return [item.item() for item in body.items]

    def answer_of(items: Sequence[ProblemTrace], records: Sequence[StepScores]) -> dict[str, Any]:
        usage = sum((record.usage for record in records), Usage())
        return {
            "model": scorer,
            "aggregation": how,
            "threshold": threshold,
            "results": [_result(*pair, how, threshold) for pair in zip(items, records, strict=True)],
            "usage": {"verifier_tokens": usage.verifier_tokens, "calls": usage.calls},
        }

    async with gateway.admission.reserve(receive=request.receive):
        images = any(message.attachments for trace in traces for message in trace.messages)
        items = await gateway.compute(size, read, images=images)
        records = await gateway.score(items)
        answer = await gateway.compute(size, lambda: answer_of(items, records))
    for result in answer["results"]:
        gateway.metrics.count("unscored", None in result["scores"])
        gateway.metrics.verdicts.labels(result["decision"]).inc()
    return answered(answer)


def _required_scorer(gateway: Gateway, model: str | None) -> str:
    """Name of the reward model. Raises :class:`ApiError` if the server has another one, or none."""
    name = gateway.planner.scorer
    if name is None:
        raise ApiError(400, "this server lacks a reward model", code="no_scorer")
    if model is not None and model not in (name, "surefoot"):
        message = f"reward model {model[:100]!r} does not exist; this server has {name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return name


def _result(item: ProblemTrace, record: StepScores, how: TraceRule, threshold: float) -> dict[str, Any]:
    """Texts and scores of the steps, and the verdict. Scores and ``value`` are ``None`` where a step was not
    scored."""
    bad = (step for step, score in enumerate(record.scores) if score is not None and score < threshold)
    first_bad = next(bad, None)
    decision = "reject"
    if first_bad is None:  # only a solution with a score for every step is accepted
        decision = "unscored" if complete_scores(record.scores) is None else "accept"
    try:
        value = aggregate(record.scores, how)
    except ScoreError:
        value = None
    return {
        "steps": [item.trace.step_text(step) for step in range(len(item.trace.steps))],
        "scores": record.scores,
        "value": value,
        "unscored_reason": record.unscored_reason,
        "decision": decision,
        "first_bad_step": first_bad,
    }
