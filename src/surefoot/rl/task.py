"""What a policy is to learn, who judges it, and who draws its rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from surefoot.answers import Grader
from surefoot.errors import TrainingError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Labeller, Policy, Segmenter, StepScorer
from surefoot.records import Problem
from surefoot.rl.audit import Reduction
from surefoot.rl.config import RLConfig
from surefoot.rl.server_weights import Publisher


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learned, and who judges it."""

    problems: Sequence[Problem]
    held_out: Sequence[Problem]
    """For evaluation; none of them is in ``problems``."""
    segmenter: Segmenter
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    scorer: StepScorer | None = None
    """Gives the step scores that credit rules read: a reward model, or a checker as a ``LabelScorer``."""
    gold: Labeller | None = None
    """A truth of steps that the reward does not see, for the audits."""
    aggregation: Reduction = "min"
    """How step scores become the proxy that is drawn beside the gold accuracy."""

    def check(self, config: RLConfig) -> None:
        """Raise ``TrainingError`` for what training with ``config`` needs and this lacks."""
        if not self.problems or not self.held_out:
            raise TrainingError("no problems to train on" if self.held_out else "no held-out problems")
        if shared := {one.id for one in self.problems} & {one.id for one in self.held_out}:
            raise TrainingError(
                f"{len(shared)} held-out problems are trained on, such as {sorted(shared)[0]}"
            )
        if "scores" in config.credit.needs and self.scorer is None:
            raise TrainingError(f"credit {config.credit.rule!r} needs step scores: give a 'scorer'")
        unknown = [problem.id for problem in self.problems if problem.answer is None]
        if "outcome" in config.credit.needs and unknown:
            raise TrainingError(
                f"credit {config.credit.rule!r} needs outcomes, and {len(unknown)} problems have no "
                f"'answer', first {unknown[0]}"
            )
        if len(self.problems) < config.problems:
            raise TrainingError(
                f"'problems' is {config.problems} a round, and there are {len(self.problems)}: lower it, or "
                "give more problems"
            )


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that draws the rollouts, and the way to give it new weights."""

    policy: Policy
    publisher: Publisher
