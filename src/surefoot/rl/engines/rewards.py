"""Rewards for the responses of another engine: text and tokens in, rewards of a credit rule out.

:func:`step_reward_function` gives them to any trainer that accepts TRL's reward functions. Written and tested
against TRL 1.13.0, which is not a dependency of this package (``pip install '.[trl]'``). Advantages per
token, from a credit rule: :class:`surefoot.rl.engines.StepGRPOTrainer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Self

import numpy as np
from transformers import PreTrainedTokenizerBase

from surefoot.answers import AnswerChecker, Grader, Solution
from surefoot.errors import TrainingError
from surefoot.protocols import ProblemTrace, Segmenter, StepScorer
from surefoot.records import Problem, Trace
from surefoot.rl.advantage import token_returns, total_return
from surefoot.rl.channels import canaries, graded, require_no_leak
from surefoot.rl.credit import CreditRule, FloatArray, ScoredRollout, with_rewards
from surefoot.rl.rollouts import score_steps, step_ends, token_starts
from surefoot.segment import channels_of, segment_trace


@dataclass(frozen=True, kw_only=True)
class EngineSample:
    """One sample of an engine's policy."""

    problem: Problem
    text: str
    starts: tuple[int, ...] = ()
    """Character of ``text`` at which each token begins [T], including the end of sequence. Empty = the tokens
    are not known, and each step counts as one: enough where one number per response is wanted."""
    finish_reason: str | None = None
    """``length`` if the limit of tokens ended it; ``None`` = not known."""
    canaries: tuple[str, ...] = ()
    """Pieces of hidden reasoning that judges must not get (:func:`surefoot.rl.channels.canaries`)."""

    @classmethod
    def decode(cls, problem: Problem, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Self:
        """The response of T token ids, without padding."""
        text = tokenizer.decode(list(ids), skip_special_tokens=True)
        finish = "stop" if ids and ids[-1] in tokenizer.all_special_ids else "length"
        starts = tuple(token_starts(tokenizer, ids, text))
        channels = channels_of(str(tokenizer.decode(list(ids))))  # with tags that are special tokens
        hidden = canaries([channels.reasoning], [problem.text, channels.answer])
        return cls(problem=problem, text=text, starts=starts, finish_reason=finish, canaries=hidden)


@dataclass(frozen=True, kw_only=True)
class StepRewards:
    """The scorer of the steps of a response, and the credit rule that turns scores into rewards.

    Raises ``TrainingError`` if the rule needs something that is missing: a scorer, environment states,
    or the log-ratios of an implicit reward model that is trained with the policy, which only ``surefoot rl``
    trains.
    """

    credit: CreditRule
    segmenter: Segmenter
    scorer: StepScorer | None = None
    grader: Grader = field(default_factory=lambda: Grader(checker=AnswerChecker()))
    """Judges outcomes, for rules that read them."""
    grade_reasoning: bool = False
    """Whether scorer and grader read hidden reasoning (:mod:`surefoot.rl.channels`)."""
    reasoning_opened: bool = False
    """Whether the prompt opens ``<think>``, as DeepSeek-R1's template does: a response that does not end the
    reasoning is then nothing else."""

    def __post_init__(self) -> None:
        if "log_ratios" in self.credit.needs:
            raise TrainingError(
                "this credit rule reads an implicit reward model that is trained with the policy, which "
                "other engines do not update: train with 'surefoot rl'"
            )
        if "states" in self.credit.needs:
            raise TrainingError(
                "this credit rule compares turns in equal states of an environment, which the text of a "
                "response does not have: choose another rule, or credit whole episodes (ScoredRollout.states)"
            )
        if "scores" in self.credit.needs and self.scorer is None:
            raise TrainingError("this credit rule reads step scores: give a 'scorer'")

    def score(self, responses: Sequence[EngineSample]) -> list[ScoredRollout]:
        """Steps, scores and outcome of each response, as the rule reads them.

        A response without a visible character counts as one unscored step.
        Raises ``TrainingError`` for a problem without ``answer`` where outcomes are read.
        """
        traces = [
            segment_trace(
                Trace(problem_id=response.problem.id, text=response.text, sample=number), self.segmenter
            )
            for number, response in enumerate(responses)
        ]
        lengths, read = [], []
        for response, trace in zip(responses, traces, strict=True):
            tokens = len(response.starts) or max(1, len(trace.steps))
            ends = step_ends(response.starts, trace.steps) if response.starts else tuple(range(tokens))
            item = ProblemTrace(problem=response.problem, trace=trace)
            lengths.append(tokens)
            read.append(graded(item, ends, reasoning=self.grade_reasoning, opened=self.reasoning_opened))
        if not self.grade_reasoning:
            require_no_leak(
                (part.item, response.canaries) for part, response in zip(read, responses, strict=True)
            )
        outcomes, scores = self._outcomes(responses), self._scores([part.item for part in read])
        return [
            ScoredRollout(tokens=tokens, ends=part.ends, scores=of_steps, outcome=outcome)
            for tokens, part, outcome, of_steps in zip(lengths, read, outcomes, scores, strict=True)
        ]

    def reward(self, responses: Sequence[EngineSample]) -> list[ScoredRollout]:
        """The responses with their rewards, for engines that subtract a baseline themselves.

        Neighbours with the same problem are a group. Raises ``TrainingError`` for a rule that gives
        advantages (``effective``), from which no baseline must be subtracted.
        """
        scored = iter(self.score(responses))
        groups = [
            [next(scored) for _ in group] for _, group in groupby(responses, key=lambda one: one.problem.id)
        ]
        rewarded = [rollout for group in with_rewards(groups, self.credit) for rollout in group]
        if any(stream.centred for item in rewarded for stream in item.rewards):
            raise TrainingError(
                "this credit rule gives advantages of single steps, not rewards: pass them on per token "
                "(StepGRPOTrainer), or train with 'surefoot rl'"
            )
        return rewarded

    def _outcomes(self, responses: Sequence[EngineSample]) -> list[float | None]:
        if "outcome" not in self.credit.needs:
            return [None] * len(responses)
        unknown = [response.problem.text for response in responses if response.problem.answer is None]
        if unknown:
            raise TrainingError(
                f"this credit rule reads outcomes, and {len(unknown)} of {len(responses)} responses have a "
                f"problem without an answer, first {unknown[0]!r}"
            )
        written = [
            Solution(
                text=response.text,
                prefix="<think>" if self.reasoning_opened else "",
                finish_reason=response.finish_reason,
            )
            for response in responses
        ]
        problems = [response.problem for response in responses]
        grades = [
            self.grader.grade([solution], [problem.answer], problem.text)[0]
            for solution, problem in zip(written, problems, strict=True)
        ]
        return [None if grade.outcome is None else float(grade.outcome) for grade in grades]

    def _scores(self, items: Sequence[ProblemTrace]) -> list[tuple[float | None, ...]]:
        if self.scorer is None or "scores" not in self.credit.needs:
            return [()] * len(items)
        records = score_steps(self.scorer, items)
        return [(None,) if record is None else record.scores for record in records]


def token_rewards(rollout: ScoredRollout) -> FloatArray:
    """Rewards at tokens [T] whose suffix sums are the returns: at ends of steps, 0 elsewhere."""
    dense = np.zeros(rollout.tokens)
    for stream in rollout.rewards:
        if stream.at and stream.reach == "returns" and not stream.centred:
            np.add.at(dense, list(stream.at), stream.weight * np.array(stream.values))
    readable = replace(rollout, rewards=tuple(reward for reward in rollout.rewards if reward.reach == "own"))
    returns = token_returns(readable)
    return np.asarray(dense + returns - np.append(returns[1:], 0.0))


def problems_of(
    prompts: Sequence[Any], columns: Mapping[str, Any], *, problem: str | None, answer: str
) -> list[Problem]:
    """The problem behind each prompt, given the data set's columns.

    Raises ``TrainingError`` for a ``problem`` column that is not there.
    """
    if problem is not None and problem not in columns:
        raise TrainingError(
            f"the data set lacks the column {problem!r} for the problem's text; name one with 'problem', "
            "and keep remove_unused_columns=False"
        )
    texts = columns[problem] if problem is not None else [_prompt_text(prompt) for prompt in prompts]
    answers = columns.get(answer, [None] * len(prompts))
    return [
        Problem(text=str(text), answer=None if gold is None else str(gold))
        for text, gold in zip(texts, answers, strict=True)
    ]


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    users = [message["content"] for message in prompt if message["role"] == "user"]
    if not users or not isinstance(users[-1], str):
        raise TrainingError("the prompt lacks a user message with text: name a column with 'problem'")
    return str(users[-1])


def step_reward_function(
    scorer: StepScorer | None,
    *,
    credit: CreditRule,
    segmenter: Segmenter,
    grader: Grader | None = None,
    problem: str | None = None,
    answer: str = "answer",
    name: str = "step_reward",
) -> Callable[..., list[float | None]]:
    """A reward function for ``GRPOTrainer(reward_funcs=...)``: the rule's return of the whole completion.

    That is the sum of its rewards: of step scores with ``summed``, their soft minimum with ``min-form``. TRL
    compares it within the group, and every token of a completion gets the same advantage; see
    :class:`surefoot.rl.engines.StepGRPOTrainer` for advantages by step. A completion without any reward gets
    ``None``, which TRL leaves out of the group.

    Args:
        scorer: gives step scores; ``None`` for a rule that reads outcomes alone.
        credit: what the scores are worth (:mod:`surefoot.rl.credit`), save ``effective`` and ``implicit``.
        segmenter: cuts completions into steps.
        grader: judges final answers, for rules that read outcomes.
        problem: column of the data set with the problem's text as the scorer reads it. ``None`` = the prompt,
            or its last user message.
        answer: column with the reference answer; needed by rules that read outcomes.
        name: name under which TRL logs it.

    Raises:
        TrainingError: the rule needs something that is missing, or never gives rewards; when called, a
            completion that is not one text.
    """
    rewards = StepRewards(
        credit=credit, segmenter=segmenter, scorer=scorer, grader=grader or Grader(checker=AnswerChecker())
    )

    def step_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        problems = problems_of(prompts, columns, problem=problem, answer=answer)
        responses = [
            _sample(problem, completion) for problem, completion in zip(problems, completions, strict=True)
        ]
        return [total_return(item) for item in rewards.reward(responses)]

    step_reward.__name__ = name
    return step_reward


def _sample(problem: Problem, completion: Any) -> EngineSample:
    """A completion: a string, or one message of text, whose parsed reasoning is put between tags."""
    if isinstance(completion, str):
        return EngineSample(problem=problem, text=completion)
    plain = len(completion) == 1 and "tool_calls" not in completion[0]
    if not plain or not isinstance(text := completion[0].get("content"), str):
        raise TrainingError(
            "a completion is not one assistant message of text alone (tool calls): its steps are not known"
        )
    reasoning = completion[0].get("reasoning_content")
    if not isinstance(reasoning, str) or not reasoning:
        return EngineSample(problem=problem, text=text)
    hidden = canaries([reasoning], [problem.text, text])
    return EngineSample(problem=problem, text=f"<think>\n{reasoning}\n</think>\n\n{text}", canaries=hidden)
