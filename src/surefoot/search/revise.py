"""Write an attempt again after feedback on its first wrong step."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field, field_validator

from surefoot.records import Message
from surefoot.search.method import SearchMethod
from surefoot.search.selection import Rule
from surefoot.search.space import Prefix, PrefixStep, Prompt, Space

SHOWN = 2000
"""Most characters of a step, and of a reason, that are shown to the policy."""


class Revise(SearchMethod):
    """``n`` whole solutions; one with a wrong step is written again, up to ``rounds`` times.

    The first step that scores below ``threshold`` is wrong. The policy reads the problem, its attempt, and
    ``feedback`` with that step and the scorer's reason: the line that does not hold, the visible test that
    fails, or, for a scorer without reasons, that the step was judged wrong. In a conversation the
    attempt is the assistant's message and the feedback the user's, else one text after another. With
    ``keep`` the steps before the wrong one stay, and only the rest is written again. (Self-Refine, Madaan et
    al. 2023, arXiv 2303.17651, with a verifier's critique in place of the policy's own.)

    An attempt without a wrong step is accepted and not revised. The rule "first" chooses an accepted one; if
    there is none, that with the highest value, of equal ones the last. Attempts that cannot be scored at all
    are not revised. The feedback comes from the scorer alone, so a scorer for use must not know
    hidden tests or reference answers.
    """

    method: ClassVar[str] = "revise"
    by_steps: ClassVar[bool] = False
    rule: Rule = Field(default="first", description="How the solution that is returned is chosen.")
    n: int = Field(default=1, ge=1, description="Solutions per problem that are revised side by side.")
    rounds: int = Field(default=2, ge=0, description="Times that a solution is written again, at most.")
    threshold: float = Field(
        default=0.5, allow_inf_nan=False, description="A step that scores below this is wrong."
    )
    keep: bool = Field(
        default=False, description="Keep the steps before the wrong one, and write the rest again."
    )
    feedback: str = Field(
        default="This step is wrong:\n\n{step}\n\n{reason}\n\nWrite the whole solution again, corrected.\n\n",
        description="Feedback to the policy; `{step}` and `{reason}` become the wrong step and the reason.",
    )

    @field_validator("feedback")
    @classmethod
    def _tells_why(cls, text: str) -> str:
        if "{reason}" not in text:
            raise ValueError("must contain '{reason}', or nothing of the verdict reaches the policy")
        return text

    @property
    def draws(self) -> int:
        """As :attr:`SearchMethod.draws`."""
        return self.n * (1 + self.rounds)

    async def explore(self, space: Space) -> list[Prefix]:
        """All attempts: accepted ones in the order written, then by value, of equal ones the last first."""
        [attempts] = await space.extend([space.root], self.n, to_end=True)
        solutions: list[Prefix] = []
        keep = self.keep and not space.steps.whole
        for remaining in range(self.rounds, -1, -1):
            await space.score(attempts)
            solutions += attempts
            wrong = [(prefix, step) for prefix in attempts if (step := self.wrong_step(space, prefix))]
            if not remaining or not wrong:
                break
            revised = await space.extend(
                [space.before(prefix, step.start) if keep else space.root for prefix, step in wrong],
                1,
                to_end=True,
                prompts=[self.prompt(space, prefix, step) for prefix, step in wrong],
            )
            attempts = [node for nodes in revised for node in nodes]
        accepted = [prefix for prefix in solutions if self._accepted(space, prefix)]
        rejected = [prefix for prefix in reversed(solutions) if not self._accepted(space, prefix)]
        return [*accepted, *sorted(rejected, key=space.value, reverse=True)]

    def wrong_step(self, space: Space, prefix: Prefix) -> PrefixStep | None:
        """The first wrong step of a scored attempt; ``None`` = there is none."""
        steps = space.scored_steps(prefix)
        return next((step for step in steps if step.score is not None and step.score < self.threshold), None)

    def _accepted(self, space: Space, prefix: Prefix) -> bool:
        scored = any(step.score is not None for step in space.scored_steps(prefix))
        return scored and self.wrong_step(space, prefix) is None

    def prompt(self, space: Space, prefix: Prefix, step: PrefixStep) -> Prompt:
        """What the policy reads before it writes again."""
        reason = step.reason or f"It was judged wrong (score {step.score:.2f})."
        parts = {"step": step.text.strip("\n")[:SHOWN], "reason": reason[:SHOWN]}
        # one pass: what a step says must not be taken for a placeholder
        feedback = re.sub(r"\{(step|reason)\}", lambda match: parts[match[1]], self.feedback)
        first = space.steps.prompt.render(space.problem)
        if isinstance(first, str):
            return f"{first}{prefix.prefix.rstrip()}\n\n{feedback}"
        attempt = Message(role="assistant", content=prefix.prefix)
        return (*first, attempt, Message(role="user", content=feedback.strip()))
