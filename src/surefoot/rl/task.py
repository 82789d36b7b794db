"""What a policy learns, who judges it, and who samples its rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from surefoot.answers import Grader
from surefoot.errors import TrainingError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Environment, Labeller, Policy, Segmenter, StepScorer
from surefoot.records import Problem
from surefoot.scores import Aggregator

if TYPE_CHECKING:
    from surefoot.rl.config import RLConfig
    from surefoot.rl.server_weights import Publisher


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learned, and who judges it: by reinforcement learning, imitation or expert iteration.

    Raises ``TrainingError`` without problems, or if one is both trained on and held out.
    """

    problems: Sequence[Problem]
    held_out: Sequence[Problem] = ()
    """Problems to evaluate on; imitation and expert iteration do not evaluate without any."""
    segmenter: Segmenter
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    scorer: StepScorer | None = None
    """Source of step scores, for credit rules and for the choice of solutions: a reward model, or a checker
    wrapped in ``LabelScorer``."""
    gold: Labeller | None = None
    """Labels the steps of held-out solutions with correct answers (trace error); independent of the
    reward."""
    environment: Callable[[], Environment] | None = None
    """Makes an environment, in which a rollout is an episode of several turns; it then gives the outcomes,
    and ``segmenter``, ``grader`` and ``prompt`` are not used. Steps are turns. For reinforcement learning."""
    max_turns: int = 30
    """Most turns of an episode; it ends there with the outcome that its state has."""
    aggregation: Aggregator = "min"
    """How step scores are reduced to the proxy that is plotted with the gold accuracy."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise TrainingError("'problems' is empty: there is nothing to train on")
        if shared := {problem.id for problem in self.problems} & {problem.id for problem in self.held_out}:
            raise TrainingError(
                f"{len(shared)} problems are both held out and trained on, first {min(shared)}: remove them "
                "from 'problems' or from 'held_out'"
            )

    def check(self, config: RLConfig) -> None:
        """Raise ``TrainingError`` for what reinforcement learning with ``config`` needs and this lacks."""
        if not self.held_out:
            raise TrainingError("'held_out' is empty: reinforcement learning needs problems to evaluate on")
        if "scores" in config.credit.needs and self.scorer is None:
            raise TrainingError(f"credit {config.credit.rule!r} needs step scores: give a 'scorer'")
        if "states" in config.credit.needs and self.environment is None:
            raise TrainingError(
                f"credit {config.credit.rule!r} compares turns in equal states of an environment: give an "
                "'environment', or choose another rule"
            )
        trains_judge = "log_ratios" in config.credit.needs or config.advantage.needs_values
        if self.environment is not None and trains_judge:
            raise TrainingError(
                "a model that is trained with the policy (credit 'implicit', advantage 'gae') reads single "
                "responses, not episodes: leave 'environment' out, or choose another rule"
            )
        if self.environment is not None and config.overlong:
            raise TrainingError(
                "'overlong' is about the tokens of one response, but 'max_tokens' limits "
                "each turn of an episode: leave it out"
            )
        unanswered = [problem.id for problem in self.problems if problem.answer is None]
        if self.environment is None and "outcome" in config.credit.needs and unanswered:
            raise TrainingError(
                f"credit {config.credit.rule!r} needs outcomes, but {len(unanswered)} problems have no "
                f"'answer', first {unanswered[0]}"
            )
        if len(self.problems) < config.problems:
            raise TrainingError(
                f"'problems' is {config.problems} per round, but there are only {len(self.problems)}: lower "
                "it, or give more problems"
            )


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that samples the rollouts, and how it receives new weights."""

    policy: Policy
    publisher: Publisher
