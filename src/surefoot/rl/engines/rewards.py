"""Rewards for the responses of another engine: text and tokens in, rewards of a credit rule out.

:class:`StepRewards` is a reward function for any trainer that accepts TRL's. Written and tested against TRL
1.13.0 and 1.16.0. Advantages per token, from a credit rule: :class:`surefoot.rl.engines.StepGRPOTrainer`.

A :class:`StepRewardManager` is asked by verl for one number per response, which verl puts at the last token;
an agent loop made by :func:`dense_agent_loop` puts the manager's token rewards there. Written against verl
0.9.1. Rewards at the ends of steps make a difference for estimators that discount or sum them token by token,
verl's ``gae`` and ``reinforce_plus_plus``. Its ``grpo`` and ``rloo`` sum over each response first.

Neither is a dependency of this package (``pip install '.[trl]'``).
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from surefoot.answers import AnswerChecker, Grader, Solution
from surefoot.errors import TrainingError
from surefoot.protocols import ProblemTrace, Segmenter, StepScorer
from surefoot.records import Problem, Trace
from surefoot.rl.advantage import token_rewards, total_return
from surefoot.rl.channels import canaries
from surefoot.rl.credit import CreditRule, with_rewards
from surefoot.rl.engines.turns import TOKEN_REWARDS
from surefoot.rl.loop import Judges, judge
from surefoot.rl.rollouts import step_ends, token_starts
from surefoot.rl.sample import Sample
from surefoot.segment import channels_of, segment_trace


@dataclass(frozen=True, kw_only=True)
class StepRewards:
    """The scorer of the steps of a response, and the credit rule that turns scores into rewards.

    Called as TRL calls a reward function (``GRPOTrainer(reward_funcs=...)``), it returns the rule's return of
    each whole completion: the sum of its rewards, with ``min-form`` their soft minimum. TRL compares it in
    the group, and every token of a completion gets the same advantage. A completion without any reward gets
    ``None``, which TRL leaves out of its group.

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
    problem: str | None = None
    """Column of TRL's data set with the problem's text as the scorer reads it. ``None`` = the prompt, or its
    last user message."""
    answer: str = "answer"
    """Column with the reference answer; needed by rules that read outcomes."""
    name: str = "step_reward"
    """Name under which TRL logs it."""

    def __post_init__(self) -> None:
        absent = {
            "log_ratios": "reads an implicit reward model that is trained with the policy, which other "
            "engines do not update: train with 'surefoot rl'",
            "states": "compares turns in equal states of an environment, which the text of a response does "
            "not have: choose another rule, or credit whole episodes",
            "scores": "" if self.scorer else "reads step scores: give a 'scorer'",
        }
        if missing := [reason for need, reason in absent.items() if reason and need in self.credit.needs]:
            raise TrainingError(f"this credit rule {missing[0]}")

    def sample(
        self,
        problem: Problem,
        text: str,
        *,
        starts: Sequence[int] = (),
        finish_reason: str | None = None,
        canaries: tuple[str, ...] = (),
    ) -> Sample:
        """A response cut into steps, and graded where the rule reads outcomes.

        ``starts`` are the characters at which its tokens begin [T], the end of sequence included; where they
        are not known each step counts as one, which is enough where one number per response is wanted. A
        response without a visible character counts as one unscored step. Raises ``TrainingError`` for a
        problem without ``answer`` where outcomes are read.
        """
        trace = Trace(problem_id=problem.id, text=text, outcome=self._outcome(problem, text, finish_reason))
        trace = segment_trace(trace, self.segmenter)
        tokens = len(starts) or max(1, len(trace.steps))
        return Sample(
            item=ProblemTrace(problem=problem, trace=trace),
            tokens=tokens,
            ends=step_ends(starts, trace.steps) if starts else tuple(range(tokens)),
            reasoning_opened=self.reasoning_opened,
            canaries=canaries,
        )

    def decode(self, problem: Problem, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Sample:
        """:meth:`sample` of the response of T token ids, without padding."""
        text = tokenizer.decode(list(ids), skip_special_tokens=True)
        channels = channels_of(str(tokenizer.decode(list(ids))))  # with tags that are special tokens
        return self.sample(
            problem,
            text,
            starts=token_starts(tokenizer, ids, text),
            finish_reason="stop" if ids and ids[-1] in tokenizer.all_special_ids else "length",
            canaries=canaries([channels.reasoning], [problem.text, channels.answer]),
        )

    def score(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with outcome and step scores, as the rule reads them."""
        judges = Judges(scorer=self.scorer, grade_reasoning=self.grade_reasoning)
        return judge(samples, self.credit, judges)

    def reward(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples with their rewards, for engines that subtract a baseline themselves.

        Neighbours with the same problem are a group. Raises ``TrainingError`` for a rule that gives
        advantages (``effective``), from which no baseline must be subtracted.
        """
        groups = [list(group) for _, group in groupby(self.score(samples), key=lambda one: one.problem.id)]
        rewarded = [sample for group in with_rewards(groups, self.credit) for sample in group]
        if any(stream.centred for sample in rewarded for stream in sample.rewards):
            raise TrainingError(
                "this credit rule gives advantages of single steps, not rewards: pass them on per token "
                "(StepGRPOTrainer), or train with 'surefoot rl'"
            )
        return rewarded

    def _outcome(self, problem: Problem, text: str, finish_reason: str | None) -> bool | None:
        if "outcome" not in self.credit.needs:
            return None
        if problem.answer is None:
            raise TrainingError(
                f"this credit rule reads outcomes, and a problem is without an answer: {problem.text!r:.200}"
            )
        prefix = "<think>" if self.reasoning_opened else ""
        solution = Solution(text=text, prefix=prefix, finish_reason=finish_reason)
        return self.grader.grade([solution], [problem.answer], problem.text)[0].outcome

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """Raises ``TrainingError`` for a completion that is not one text."""
        problems = self.problems(prompts, columns)
        samples = [self._completion(*pair) for pair in zip(problems, completions, strict=True)]
        return [total_return(sample) for sample in self.reward(samples)]

    @property
    def __name__(self) -> str:
        return self.name

    def problems(self, prompts: Sequence[Any], columns: Mapping[str, Any]) -> list[Problem]:
        """The problem behind each prompt, given the data set's columns.

        Raises ``TrainingError`` for a ``problem`` column that is not there.
        """
        if self.problem is not None and self.problem not in columns:
            raise TrainingError(
                f"the data set lacks the column {self.problem!r} for the problem's text; name one with "
                "'problem', and keep remove_unused_columns=False"
            )
        texts = columns[self.problem] if self.problem is not None else map(_prompt_text, prompts)
        answers = columns.get(self.answer, [None] * len(prompts))
        return [
            Problem(text=str(text), answer=None if gold is None else str(gold))
            for text, gold in zip(texts, answers, strict=True)
        ]

    def _completion(self, problem: Problem, completion: Any) -> Sample:
        """A string, or one message of text, whose parsed reasoning is put between tags."""
        if isinstance(completion, str):
            return self.sample(problem, completion)
        plain = len(completion) == 1 and "tool_calls" not in completion[0]
        if not plain or not isinstance(text := completion[0].get("content"), str):
            raise TrainingError(
                "a completion is not one assistant message of text alone (tool calls): its steps are unknown"
            )
        reasoning = completion[0].get("reasoning_content")
        if not isinstance(reasoning, str) or not reasoning:
            return self.sample(problem, text)
        hidden = canaries([reasoning], [problem.text, text])
        return self.sample(problem, f"<think>\n{reasoning}\n</think>\n\n{text}", canaries=hidden)


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    users = [message["content"] for message in prompt if message["role"] == "user"]
    if not users or not isinstance(users[-1], str):
        raise TrainingError("the prompt lacks a user message with text: name a column with 'problem'")
    return str(users[-1])


class StepRewardManager(ABC):
    """A reward manager of verl: rewards at the ends of steps. Subclass it, and name the subclass in verl's
    configuration: ``reward.reward_manager.source=importlib``, with ``module.path`` and ``name``.

    verl constructs it with ``tokenizer`` and other arguments, which are ignored. Raises
    ``TrainingError`` where a response holds turns that the policy did not write, and for a problem or a
    reward that is missing.
    """

    problem: ClassVar[str] = "question"
    """Key of ``extra_info`` with the problem's text as the scorer reads it."""
    unknown: ClassVar[float | None] = None
    """Reward, at its last token, of a response without any; ``None`` = an error."""

    def __init__(self, tokenizer: Any, **_: object) -> None:
        self.tokenizer = tokenizer
        self._rewards = self.rewards()

    @abstractmethod
    def rewards(self) -> StepRewards:
        """Scorer, segmenter and credit rule; called once in each of verl's reward workers."""

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``DataProto`` of one response to one number."""
        (rollout,) = await asyncio.to_thread(self._rewarded, data[-1:])
        score, rewards_t = total_return(rollout), token_rewards(rollout)
        extra: dict[str, Any] = {"score": score, "rewarded": float(score is not None)}
        if rewards_t is None:
            if self.unknown is None:
                raise TrainingError(
                    "a response is without a reward (none of its steps was scored): set its reward with "
                    "'unknown'"
                )
            extra["score"], rewards_t = self.unknown, np.zeros(rollout.tokens)
            rewards_t[-1] = self.unknown
        extra[TOKEN_REWARDS] = json.dumps(rewards_t.tolist())
        return {"reward_score": extra["score"], "reward_extra_info": extra}

    @classmethod
    def assemble_rm_scores(cls, data: Any, scores: list[float]) -> Any:
        """Where a reward model shares the policy's devices: numbers at the last tokens."""
        rewards_bt = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        last = torch.tensor(_lengths(data), device=rewards_bt.device) - 1
        rewards_bt[torch.arange(len(scores), device=rewards_bt.device), last] = rewards_bt.new_tensor(scores)
        return rewards_bt

    def _rewarded(self, data: Any) -> list[Sample]:
        turns = data.non_tensor_batch.get("__num_turns__")
        if turns is not None and max(turns) > 2:
            raise TrainingError(
                f"a conversation has {max(turns)} turns: its response contains text that the policy did not "
                "write"
            )
        extra = data.non_tensor_batch.get("extra_info", [None] * len(data))
        truths = data.non_tensor_batch["reward_model"]
        return self._rewards.reward(
            [
                self._rewards.decode(
                    _problem(extra[row], self.problem, truths[row].get("ground_truth")),
                    data.batch["responses"][row][:length].tolist(),
                    self.tokenizer,
                )
                for row, length in enumerate(_lengths(data))
            ]
        )


def dense_agent_loop(base: type) -> type:
    """``base``, an agent loop of verl 0.9, with a :class:`StepRewardManager`'s rewards at their tokens.

    verl writes the one number that the manager returned at the last token of the response; this writes the
    rewards [T] that the manager returned with it. Name the class in the file of
    ``actor_rollout_ref.rollout.agent.agent_loop_config_path``, and that name in
    ``actor_rollout_ref.rollout.agent.default_agent_loop``.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    class DenseOutput(AgentLoopOutput):  # type: ignore[misc]
        def as_dict(self) -> dict[str, Any]:
            output: dict[str, Any] = super().as_dict()
            written = self.extra_fields.get("reward_extra_info", {}).get(TOKEN_REWARDS)
            if written is not None:
                rewards_t = torch.tensor(json.loads(written), dtype=torch.float32)
                if rewards_t.shape != output["responses"].shape:
                    raise TrainingError(
                        f"{len(rewards_t)} token rewards for a response of {len(output['responses'])} tokens"
                    )
                output["rm_scores"] = rewards_t
            return output

    class DenseAgentLoop(base):  # type: ignore[misc]
        async def run(self, sampling_params: dict[str, Any], **others: Any) -> Any:
            output = await super().run(sampling_params, **others)
            return DenseOutput(**{name: getattr(output, name) for name in output.model_fields_set})

    return DenseAgentLoop


def _lengths(data: Any) -> list[int]:
    """Tokens of each response [B], without padding."""
    prompt = data.batch["prompts"].shape[1]
    return [int(length) for length in data.batch["attention_mask"][:, prompt:].sum(dim=1)]


def _problem(extra_info: Mapping[str, Any] | None, key: str, ground_truth: object) -> Problem:
    if not extra_info or key not in extra_info:
        raise TrainingError(f"'extra_info' has no {key!r}: put the problem's text there, or name its key")
    answer = None if ground_truth is None else str(ground_truth)
    return Problem(text=str(extra_info[key]), answer=answer)
