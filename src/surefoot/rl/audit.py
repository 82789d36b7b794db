"""Evaluation of a policy on held-out problems, with a truth that is independent of its reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError, PolicyError
from surefoot.protocols import Labeller, Policy, ProblemTrace, Sampling, StepScorer
from surefoot.records import StepLabel, Trace, Usage
from surefoot.rl.log import EvaluationRow, Shape
from surefoot.rl.rollouts import Task
from surefoot.scores import checked_scores, trace_score
from surefoot.stats.bootstrap import bootstrap_mean, bootstrap_totals
from surefoot.stats.intervals import Interval

_DRAWS = 2_000


async def audit_policy(
    policy: Policy, task: Task, *, update: int, samples: int, n: int, seed: int, sampling: Sampling
) -> tuple[EvaluationRow, list[Trace]]:
    """Sample ``n`` solutions (or episodes) of each held-out problem of ``task``: graded, scored by its
    scorer, correct ones checked by its ``gold``.

    ``update`` and ``samples`` say how far training is. ``gold`` gives labels of kind correctness; a trace is
    wrong if one of its steps is labelled -1. Equal seeds give equal samples of an unchanged policy and equal
    bootstrap draws. Returns what was measured and the traces, one problem's after the other, without failed
    samples. Raises ``PolicyError`` if all samples failed, ``LabelError`` if no answer could be graded.
    """
    problems = task.held_out
    sampled = await task.sample(policy, problems, n=n, seed=seed, sampling=sampling)
    groups = [
        [ProblemTrace(problem=problem, trace=trace) for trace in traces if trace.text or not trace.error]
        for problem, traces in zip(problems, sampled, strict=True)
    ]
    items = [item for group in groups for item in group]
    if not items:
        errors = {trace.error for traces in sampled for trace in traces if trace.error}
        raise PolicyError(
            f"all samples of {len(problems)} held-out problems failed: {'; '.join(sorted(errors))}"
        )
    graded = [np.array([i.trace.outcome for i in g if i.trace.outcome is not None], float) for g in groups]
    right = [group.mean() for group in graded if len(group)]
    if not right:
        raise LabelError("no held-out answer could be graded: give problems that have an 'answer'")
    usage = sum((trace.usage for traces in sampled for trace in traces), Usage())
    proxy = trace_error = None
    unscored = unjudged = 0
    if task.scorer:
        proxy, unscored, spent = await _scored(items, task, task.scorer, seed)
        usage += spent
    if task.gold:
        trace_error, unjudged, spent = await _judged(groups, task.gold, seed)
        usage += spent
    row = EvaluationRow(
        update=update,
        samples=samples,
        accuracy=bootstrap_mean(right, draws=_DRAWS, rng=np.random.default_rng(seed)),
        proxy=proxy,
        trace_error=trace_error,
        problems=len(right),
        shape=shape_of([item.trace for item in items]),
        failed=n * len(problems) - len(items),
        ungraded=len(items) - sum(map(len, graded)),
        unscored=unscored,
        unjudged=unjudged,
        usage=usage,
    )
    return row, [item.trace for item in items]


def shape_of(traces: Sequence[Trace]) -> Shape:
    """Lengths of some traces."""
    if not traces:
        return Shape()
    return Shape(
        traces=len(traces),
        tokens=sum(trace.usage.completion_tokens for trace in traces) / len(traces),
        steps=sum(len(trace.steps) for trace in traces) / len(traces),
        finished=sum(not trace.cut_off for trace in traces) / len(traces),
    )


async def _scored(
    items: Sequence[ProblemTrace], task: Task, proxy: StepScorer, seed: int
) -> tuple[Interval | None, int, Usage]:
    """Mean over problems of the mean score of their traces, the number of unscored traces, the cost."""
    # without its hidden reasoning a trace may be empty
    read = [part for item in items if (part := task.as_judged(item)).trace.steps or not item.trace.steps]
    records = await asyncio.to_thread(checked_scores, proxy, read)
    values: dict[str, list[float]] = {}
    for item, record in zip(read, records, strict=True):
        score = trace_score(record.scores, task.aggregation)
        if score is not None:
            values.setdefault(item.problem.id, []).append(score)
    means = [float(np.mean(of_problem)) for of_problem in values.values()]
    mean = bootstrap_mean(means, draws=_DRAWS, rng=np.random.default_rng(seed)) if means else None
    unscored = len(items) - sum(map(len, values.values()))
    return mean, unscored, sum((record.usage for record in records), Usage())


async def _judged(
    groups: Sequence[Sequence[ProblemTrace]], gold: Labeller, seed: int
) -> tuple[Interval | None, int, Usage]:
    """Share of the traces with a correct answer that have a wrong step, the number of unjudged ones, the
    cost."""
    right = [[item for item in group if item.trace.outcome] for group in groups]
    labels = iter(await gold.label([item for group in right for item in group]))
    counts = np.zeros((len(right), 2))
    unjudged = 0
    usage = Usage()
    for problem, group in enumerate(right):
        for item in group:
            of_trace = next(labels)
            wrong = _has_wrong_step(item.trace, of_trace)
            unjudged += wrong is None
            counts[problem] += (0, 0) if wrong is None else (wrong, 1)
            usage += sum((label.evidence.usage for label in of_trace), Usage())
    share = None
    if counts[:, 1].any():
        [share] = bootstrap_totals([counts], _ratio, draws=_DRAWS, rng=np.random.default_rng(seed))
    return share, unjudged, Usage(verifier_tokens=usage.tokens, calls=usage.calls)


def _has_wrong_step(trace: Trace, labels: Sequence[StepLabel]) -> bool | None:
    """``None`` = no step is known to be wrong, and some are unknown."""
    labels_by_step = {
        label.step: label.value for label in labels if label.kind == "correctness" and label.value is not None
    }
    if -1 in labels_by_step.values():
        return True
    return False if trace.steps and len(labels_by_step) == len(trace.steps) else None


def _ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Wrong over judged [n, 1], from totals [n, 1, 2]; NaN in a draw without a judged trace."""
    wrong, judged = totals[:, 0, :1], totals[:, 0, 1:]
    return np.divide(wrong, judged, out=np.full_like(wrong, np.nan), where=judged > 0)
