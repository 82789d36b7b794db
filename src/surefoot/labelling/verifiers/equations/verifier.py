"""The verifier of equations: verdicts on the steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from surefoot.labelling.verifiers.equations.reading import MAX_CHARS
from surefoot.labelling.verifiers.equations.step import RIGHT, Context, EquationCheck, StepCheck, check_step
from surefoot.labelling.verifiers.tool_policy import runs_commands
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict


class EquationVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for the equations in a step, checked in context.

    It parses plain text (``48/2 = 24``, ``2 x $3 = $6``), GSM8K's calculator marks (``<<48/2=24>>``) and
    LaTeX, chains included. An equation of numbers

    - *holds* if both sides are equal exactly;
    - holds *rounded* if one side is a single decimal number (at least one digit after the point) and the
      other differs from it by at most half a unit of its last shown digit: ``10/3 = 3.33``, or by the error
      of floating-point arithmetic: ``17 * .1 = 1.7000000000000002``;
    - *fails* if the sides differ otherwise and no other reading is plausible;
    - is *unchecked* in all other cases. Among them: an integer instead of a fraction less than 1 away, or a
      decimal less than one unit of its last digit away (rounded up, down or cut off on purpose); a result
      within the rounding of the decimals on the other side (``3 * 3.33 = 10.00``); a chain that continues
      with the result (``5 + 5 = 10 + 2 = 12``); units that may be converted; steps that refute or suppose
      (``0 = 1, a contradiction``), other number bases.

    An equation with unknowns

    - *holds* if it is an identity, and *fails* if it is true for no value (``x + 1 = x + 2``);
    - *follows* if it is a linear combination of one or two earlier equations of the problem and the steps.
      These can only confirm: another line, case or object may share the letters;
    - *fails* as the *rewriting* of the equation right before it if it cannot be that: one side is the same
      and the other is not, a term changed sides without its sign, a value does not solve it;
    - is *restated* or *unchecked* otherwise. Silence says nothing about the step.

    A step is -1 if an equation or a claim about a whole number (``91 is prime``) fails, +1 if one holds or
    follows and none fails, and ``None`` otherwise. Calls, and runs whose tools run commands, are not checked:
    what looks like an equation there is code or a log. The work per step is bounded, and no text is evaluated
    as a program. Steps after a common prefix read it once.
    """

    name = "equations"
    reads = SOLUTION_CHANNELS

    def __init__(self) -> None:
        self._start = lru_cache(maxsize=256)(Context.of_problem)
        self._step = lru_cache(maxsize=1024)(check_step)

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step."""
        return [[_verdict(step, text) for step, text in self._steps(item)] for item in items]

    def check(self, item: ProblemTrace) -> list[tuple[EquationCheck, ...]]:
        """The result for each equation and claim of each step, in order."""
        return [step.checks for step, _ in self._steps(item)]

    def _steps(self, item: ProblemTrace) -> list[tuple[StepCheck, str]]:
        context = self._start(item.problem.text)
        steps = []
        commands = any(runs_commands(call) for row in item.trace.messages for call in row.tool_calls)
        for index in range(len(item.trace.steps)):
            is_code = commands or item.trace.steps[index].part == "tool_call"
            text = "" if is_code else item.trace.step_text(index).strip()
            step = self._step(context, text)
            steps.append((step, text))
            context = step.context
        return steps


def _verdict(step: StepCheck, text: str) -> Verdict:
    checks = step.checks
    if not checks:
        return Verdict(
            value=None, reason="the step is too long" if len(text) > MAX_CHARS else "nothing to check"
        )
    wrong = [check for check in checks if check.state == "fails"]
    if wrong:
        reason = wrong[0].reason
        return Verdict(value=-1, reason=f"does not hold: {wrong[0].text} ({reason})")
    unchecked = [check for check in checks if check.state == "unchecked"]
    right = [check for check in checks if check.state in RIGHT]
    if unchecked or not right:
        return Verdict(value=None, reason=f"cannot be checked: {(unchecked or checks)[0].reason}")
    rounded = sum(check.state == "rounded" for check in right)
    follow = sum(check.state == "follows" for check in right)
    note = f", {rounded} of them rounded" if rounded else ""
    note += f", {follow} of them because of earlier ones" if follow else ""
    return Verdict(value=1, reason=f"all {len(checks)} equations hold{note}")
