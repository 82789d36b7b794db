"""What the responses of another engine are worth: text and tokens in, credit of a rule out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.protocols import ProblemTrace, Segmenter, StepScorer
from surefoot.records import Problem, Trace
from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.advantage.tokens import token_returns
from surefoot.rl.credit.rule import CreditRule, FloatArray, Scored
from surefoot.rl.rollouts import step_ends, token_starts
from surefoot.scores import checked_scores
from surefoot.segment import segment_trace


@dataclass(frozen=True, kw_only=True)
class Response:
    """One sample of an engine's policy."""

    problem: Problem
    text: str
    starts: tuple[int, ...] = ()
    """Character of ``text`` at which each token begins [T], end of sequence included. Empty = the tokens are
    not known, and each step counts as one: enough where one number a response is wanted."""

    @classmethod
    def decode(cls, problem: Problem, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Self:
        """The response of T token ids, without padding."""
        text = tokenizer.decode(list(ids), skip_special_tokens=True)
        return cls(problem=problem, text=text, starts=tuple(token_starts(tokenizer, ids, text)))


@dataclass(frozen=True, kw_only=True)
class StepRewards:
    """Who scores the steps of a response, and the rule that gives credit for the scores.

    Raises ``TrainingError`` where the rule needs what an engine cannot give: a scorer that is missing, or
    the log-ratios of an implicit reward model that learns beside the policy (``surefoot rl`` trains with it).
    """

    credit: CreditRule
    segmenter: Segmenter
    scorer: StepScorer | None = None
    grader: Grader = field(default_factory=lambda: Grader(checker=AnswerChecker()))
    """Judges outcomes, for rules that read them."""

    def __post_init__(self) -> None:
        if "log_ratios" in self.credit.needs:
            raise TrainingError(
                "this credit rule reads an implicit reward model that learns beside the policy, which no "
                "other engine updates: train with 'surefoot rl'"
            )
        if "scores" in self.credit.needs and self.scorer is None:
            raise TrainingError("this credit rule reads step scores: give a 'scorer'")

    def scored(self, responses: Sequence[Response]) -> list[Scored]:
        """Steps, scores and outcome of each response, as the rule reads them.

        A response without a visible character counts as one step that nobody scored.
        Raises ``TrainingError`` for a problem without ``answer`` where outcomes are read.
        """
        traces = [
            segment_trace(Trace(problem_id=one.problem.id, text=one.text, sample=number), self.segmenter)
            for number, one in enumerate(responses)
        ]
        outcomes = self._outcomes(responses)
        scores = self._scores(
            [
                ProblemTrace(problem=one.problem, trace=trace)
                for one, trace in zip(responses, traces, strict=True)
            ]
        )
        found = []
        for one, trace, outcome, of_steps in zip(responses, traces, outcomes, scores, strict=True):
            tokens = len(one.starts) or max(1, len(trace.steps))
            ends = step_ends(one.starts, trace.steps) if one.starts else tuple(range(tokens))
            found.append(Scored(tokens=tokens, ends=ends, scores=of_steps, outcome=outcome))
        return found

    def credited(self, groups: Sequence[Sequence[Scored]]) -> list[list[Credited]]:
        """Rewards of every response of every group (the samples of one problem)."""
        return [
            [Credited(tokens=one.tokens, streams=streams) for one, streams in zip(group, given, strict=True)]
            for group, given in zip(groups, self.credit.credit(groups), strict=True)
        ]

    def rewarded(self, responses: Sequence[Response]) -> list[Credited]:
        """Rewards of each response, for engines that take a baseline off by themselves.

        Neighbours with the same problem are a group. Raises ``TrainingError`` for a rule that gives
        advantages (``effective``): the engine would take a baseline off what has none.
        """
        scored = iter(self.scored(responses))
        groups = [
            [next(scored) for _ in group] for _, group in groupby(responses, key=lambda one: one.problem.id)
        ]
        found = [one for group in self.credited(groups) for one in group]
        if any(stream.centred for one in found for stream in one.streams):
            raise TrainingError(
                "this credit rule gives advantages of single steps, which are no rewards to compare: hand "
                "them over at tokens (StepGRPOTrainer), or train with 'surefoot rl'"
            )
        return found

    def _outcomes(self, responses: Sequence[Response]) -> list[float | None]:
        if "outcome" not in self.credit.needs:
            return [None] * len(responses)
        unknown = [one.problem.text for one in responses if one.problem.answer is None]
        if unknown:
            raise TrainingError(
                f"this credit rule reads outcomes, and {len(unknown)} of {len(responses)} responses have a "
                f"problem without an answer, first {unknown[0]!r}"
            )
        grades = self.grader.grade([one.text for one in responses], [one.problem.answer for one in responses])
        return [None if grade.outcome is None else float(grade.outcome) for grade in grades]

    def _scores(self, items: Sequence[ProblemTrace]) -> list[tuple[float | None, ...]]:
        """Of each response's steps; those without a step are not shown to the scorer."""
        if self.scorer is None or "scores" not in self.credit.needs:
            return [()] * len(items)
        records = iter(checked_scores(self.scorer, [item for item in items if item.trace.steps]))
        return [next(records).scores if item.trace.steps else (None,) for item in items]


def token_rewards(credited: Credited) -> FloatArray:
    """Rewards at tokens [T] whose later sums are the returns: all at ends of steps, 0 elsewhere."""
    dense = np.zeros(credited.tokens)
    for stream in credited.streams:
        if stream.at and stream.reach == "returns" and not stream.centred:
            np.add.at(dense, list(stream.at), stream.weight * np.array(stream.values))
    own = replace(credited, streams=tuple(one for one in credited.streams if one.reach == "own"))
    returns = token_returns(own)
    return np.asarray(dense + returns - np.append(returns[1:], 0.0))
