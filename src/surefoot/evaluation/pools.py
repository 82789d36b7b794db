"""Pools of candidates from traces and step scores: graded, with canonical answers and one score each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surefoot.answers import AnswerChecker, AnswerStyle, Solution, final_answer, group_equal
from surefoot.errors import ScoreError
from surefoot.formats.candidate_pool import CandidatePool
from surefoot.io.tables import RecordTable
from surefoot.records import Problem, StepScores, Trace
from surefoot.scores import Aggregator, require_scores, trace_score
from surefoot.search.estimators import Method, Pool, selection_curve

FloatArray = NDArray[np.float64]

Progress = Callable[[int], None]
"""Receives the number of finished problems."""


@dataclass(frozen=True, kw_only=True)
class CandidateGroup:
    """The n traces of one problem without their texts."""

    trace_ids: Sequence[str]
    answers: Sequence[str | None]
    correct: NDArray[np.bool_]
    """[n]; an unknown outcome counts as wrong."""
    steps: NDArray[np.int32]
    """Number of steps, [n]."""
    prompt_tokens: int
    """Of all n."""
    completion_tokens: int
    """Of all n."""
    uncounted: int
    """Traces with a text but without a token count."""

    def __len__(self) -> int:
        return len(self.trace_ids)

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> CandidateGroup:
        """From the traces of one problem, in their order."""
        written = [trace.usage.completion_tokens for trace in traces]
        return cls(
            trace_ids=[trace.id for trace in traces],
            answers=[trace.answer for trace in traces],
            correct=np.array([trace.outcome is True for trace in traces], dtype=bool),
            steps=np.array([len(trace.steps) for trace in traces], dtype=np.int32),
            prompt_tokens=sum(trace.usage.prompt_tokens for trace in traces),
            completion_tokens=sum(written),
            uncounted=sum(
                bool(trace.text or trace.messages) and not count
                for trace, count in zip(traces, written, strict=True)
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The graded traces of each problem, with equal answers in one form; all problems have enough traces."""

    groups: Mapping[str, CandidateGroup]
    """Problem id → its traces, in the input's order."""
    dropped: Mapping[str, int]
    """Left-out traces and problems, by reason."""

    def __len__(self) -> int:
        """Number of traces."""
        return sum(map(len, self.groups.values()))


@dataclass(frozen=True, kw_only=True)
class StoredPools:
    """Published pools as records, graded again."""

    problems: list[Problem]
    traces: list[Trace]
    scores: list[StepScores]
    dropped: Mapping[str, int]
    verdicts: int
    """Candidates with a verdict in the file."""
    differing: int
    """Verdicts that differ from the outcome here, or whose outcome is unknown."""


def grade_stored(
    pools: Iterable[CandidatePool],
    checker: AnswerChecker,
    styles: Sequence[AnswerStyle],
    *,
    progress: Progress = lambda _: None,
) -> StoredPools:
    """Read the final answers of stored candidates and compare them with the references."""
    problems: list[Problem] = []
    traces: list[Trace] = []
    scores: list[StepScores] = []
    dropped: Counter[str] = Counter()
    for number, pool in enumerate(pools, start=1):
        dropped.update(pool.dropped)
        problems.append(pool.problem)
        traces += graded(pool.traces, pool.problem.answer, checker, styles)
        scores += pool.scores
        progress(number)
    stated = [trace for trace in traces if "correct" in trace.meta]
    return StoredPools(
        problems=problems,
        traces=traces,
        scores=scores,
        dropped={f"stored candidates: {reason}": count for reason, count in dropped.items()},
        verdicts=len(stated),
        differing=sum(trace.meta["correct"] is not trace.outcome for trace in stated),
    )


def graded(
    traces: Sequence[Trace], reference: str | None, checker: AnswerChecker, styles: Sequence[AnswerStyle]
) -> list[Trace]:
    """Traces of one problem with the final answers of their texts and outcomes.

    Without an answer the outcome is wrong; without ``reference``, or if the comparison fails, it is ``None``.
    """
    answers = [
        final_answer(Solution(text=trace.text or "", finish_reason=trace.finish_reason), styles)
        for trace in traces
    ]
    verdicts: dict[str | None, bool | None] = {}
    if reference is not None:
        distinct = [answer for answer in dict.fromkeys(answers) if answer is not None]
        pairs = [(answer, reference) for answer in distinct]
        verdicts = {None: False, **dict(zip(distinct, checker.grade(pairs), strict=True))}
    return [
        trace.model_copy(update={"answer": answer, "outcome": verdicts.get(answer)})
        for trace, answer in zip(traces, answers, strict=True)
    ]


def judged_candidates(
    traces: Iterable[Trace],
    checker: AnswerChecker,
    *,
    least: int | None = None,
    progress: Progress = lambda _: None,
) -> Candidates:
    """Group traces by problem; leave out traces without outcome, then problems with fewer than ``least``.

    Tables (:func:`surefoot.io.tables.open_table`) are read one problem at a time. By default ``least`` is the
    largest power of two that half of the problems have, so that a few failed requests do not shorten all
    curves. Raises ``ScoreError`` for duplicate ids, or if no problem is left.
    """
    total = 0
    groups: dict[str, CandidateGroup] = {}
    for members in _by_problem(traces):
        total += len(members)
        if graded_members := [trace for trace in members if trace.outcome is not None]:
            groups[graded_members[0].problem_id] = CandidateGroup.of(graded_members)
    if least is None:
        middle = sorted(map(len, groups.values()))[len(groups) // 2] if groups else 1
        least = sizes_up_to(middle)[-1]
    large = {name: group for name, group in groups.items() if len(group) >= least}
    if not large:
        raise ScoreError(
            f"no problem has {least} traces with a known 'outcome' ({total} traces given); "
            "grade the answers, or ask for smaller sizes"
        )
    canonical = {}
    for number, (name, group) in enumerate(large.items(), start=1):
        canonical[name] = replace(group, answers=group_equal(group.answers, checker))
        progress(number)
    judged = sum(map(len, groups.values()))
    dropped = {
        "traces without known outcome": total - judged,
        f"problems with fewer than {least} such traces": len(groups) - len(canonical),
        "traces of these problems": judged - sum(map(len, canonical.values())),
    }
    return Candidates(groups=canonical, dropped={reason: count for reason, count in dropped.items() if count})


def pool_of(group: CandidateGroup, scores: Mapping[str, StepScores], how: Aggregator) -> Pool:
    """One problem's pool; ``scores`` is by trace id. A partly scored trace is unscored.

    Raises ``ScoreError`` as ``require_scores`` and ``aggregate`` of ``surefoot.scores`` do.
    """
    values = [
        _value(name, steps, scores.get(name), how)
        for name, steps in zip(group.trace_ids, group.steps.tolist(), strict=True)
    ]
    return Pool(answers=group.answers, correct=group.correct, scores=np.array(values, dtype=float))


def sizes_up_to(samples: int) -> list[int]:
    """1, 2, 4 … up to ``samples``."""
    return [1 << power for power in range(samples.bit_length()) if 1 << power <= samples]


def expected_accuracy(
    pools: Sequence[Pool], method: Method, sizes: Sequence[int], *, seed: int, draws: int = 400
) -> FloatArray:
    """``selection_curve`` [problems, sizes] with the random generator that all curves of a report share."""
    return selection_curve(pools, method, sizes, draws=draws, rng=np.random.default_rng(seed))


def _value(trace_id: str, steps: int, record: StepScores | None, how: Aggregator) -> float | None:
    if record is None or not record.scores:
        return None
    require_scores(record, trace_id, steps)
    return trace_score(record.scores, how)


def _by_problem(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    if isinstance(traces, RecordTable):
        yield from traces.groups()
        return
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.problem_id, []).append(trace)
    twice = [
        name
        for name, count in Counter(trace.id for group in groups.values() for trace in group).items()
        if count > 1
    ]
    if twice:
        raise ScoreError(f"{len(twice)} trace ids occur twice, first {twice[0]}; keep one trace of each id")
    yield from groups.values()
