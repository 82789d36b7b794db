"""TRL: step rewards as a reward function, for any trainer that accepts reward functions.

Written and tested against TRL 1.13.0; TRL is not a dependency of this package (``pip install
surefoot[trl]``). Advantages per token, from a credit rule: :class:`surefoot.rl.engines.StepGRPOTrainer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.protocols import Segmenter, StepScorer
from surefoot.rl.advantage import total_return
from surefoot.rl.credit import CreditRule
from surefoot.rl.engines.rewards import EngineSample, StepRewards, problems_of


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
            EngineSample(problem=problem, text=_only_text(completion))
            for problem, completion in zip(problems, completions, strict=True)
        ]
        return [total_return(item) for item in rewards.reward(responses)]

    step_reward.__name__ = name
    return step_reward


def _only_text(completion: Any) -> str:
    """The text of a completion: a string, or one message that is nothing but text."""
    if isinstance(completion, str):
        return completion
    plain = len(completion) == 1 and not {"tool_calls", "reasoning_content"} & completion[0].keys()
    if not plain or not isinstance(completion[0].get("content"), str):
        raise TrainingError(
            "a completion is not one assistant message of text alone (tool calls, parsed reasoning): its "
            "steps are not known"
        )
    return str(completion[0]["content"])
