"""How a generative verifier is asked, and how its critique is read.

The defaults are ThinkPRM's (Khalifa et al., arXiv 2504.16828): one user turn with problem and numbered steps,
a critique of each step that ends in ``\\boxed{correct}`` or ``\\boxed{incorrect}`` and stops at the first
incorrect one, then the question whose yes or no is scored.

The question and its answers come from the model card's transcript (``</think>``, a line end, ``Is the
solution correct? No``) and of the authors' classes, which read the tokens " Yes" and " No" alone. Their
search script (``thinkprm_api.py``) asks without ``</think>`` and offers yes and no in lower case instead. The
phrases that begin another round are theirs too.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from pydantic import model_validator

from surefoot.errors import ScoreError
from surefoot.policies.prompts import break_control_tokens
from surefoot.protocols import ProblemTrace
from surefoot.records import FrozenModel, Message

_THINKPRM = """\
You are given a math problem and a proposed step-by-step solution:

[Math Problem]

{problem}

[Solution]

{solution}

Review and critique each step in the proposed solution to determine whether each step is correct. \
If the solution is incomplete, only verify the provided steps."""


class CritiqueError(Exception):
    """A critique without a verdict on every step; the message is the reason to count it under."""


@dataclass(frozen=True, kw_only=True)
class Critique:
    """What a verifier wrote, up to its last verdict."""

    text: str
    verdicts: tuple[bool, ...]
    """One a step, ``True`` = correct; it ends at the first ``False``."""


class VerifierFormat(FrozenModel):
    """Texts around and inside a critique; ``verifier.json`` of a checkpoint trained here."""

    template: str = _THINKPRM
    """``{problem}`` and ``{solution}`` are replaced."""
    chat: bool = True
    """Whether the template is a user message for the chat template, or the text as the model reads it."""
    step: str = "Step {number}: {text}"
    """One step; ``{number}`` counts from 1. Steps are joined by line ends."""
    opening: str = "\nLet's verify step by step:"
    """What the reply is made to begin with."""
    correct: str = r"\boxed{correct}"
    incorrect: str = r"\boxed{incorrect}"
    end: str = "</think>"
    """What closes the critique."""
    question: str = "\nIs the solution correct?"
    """Forced after ``end``; the token after it is yes or no."""
    yes: tuple[str, ...] = (" Yes",)
    no: tuple[str, ...] = (" No",)
    """Spellings whose probabilities are added: ThinkPRM has one of each; a tokenizer may need others."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, holes in (("template", ("{problem}", "{solution}")), ("step", ("{text}",))):
            for hole in holes:
                if hole not in getattr(self, name):
                    raise ValueError(f"{name} must contain '{hole}'")
        if not (self.correct and self.incorrect and self.end):
            raise ValueError("correct, incorrect and end must not be empty")
        if self.correct in self.incorrect or self.incorrect in self.correct:
            raise ValueError("correct and incorrect must not contain each other: verdicts would be ambiguous")
        if not self.yes or not self.no or set(self.yes) & set(self.no):
            raise ValueError("yes and no need one spelling each and none in common")
        return self

    @property
    def stop(self) -> tuple[str, ...]:
        """Where a critique ends: at the first incorrect step, at its end, or at the question."""
        return (self.incorrect, self.end, self.question.strip() or self.end)

    @property
    def closing(self) -> str:
        """What is forced after the last verdict so that the next token is the answer."""
        return f"\n{self.end}{self.question}"

    def prompt(self, item: ProblemTrace, special: Collection[str] = ()) -> str | tuple[Message, ...]:
        """What the verifier is shown. Raises ``ScoreError`` for a trace without steps or text.

        A heading that a step has already (``Step 3:``) is left out, since it gets its number here. Control
        tokens in the problem or a step: the tokens of common chat templates and the ``special`` ones of the
        model's tokenizer, get a space after their first character
        (:func:`surefoot.policies.prompts.break_control_tokens`); so do verdicts, which a critique that
        repeats the step would give as its own.
        """
        if item.trace.text is None or not item.trace.steps:
            raise ScoreError(
                f"trace {item.trace.id}: a generative verifier reads a text trace that has steps; "
                "segment it first, or use a judge for chat traces"
            )
        texts = [self._bare(item.trace.step_text(index)) for index in range(len(item.trace.steps))]
        reserved = {*special, self.correct, self.incorrect}
        problem, *step_texts = (break_control_tokens(text, reserved) for text in (item.problem.text, *texts))
        steps = (_fill(self.step, number=str(n), text=text) for n, text in enumerate(step_texts, start=1))
        text = _fill(self.template, problem=problem, solution="\n".join(steps))
        return (Message(role="user", content=text),) if self.chat else text

    def _bare(self, text: str) -> str:
        """A step's text without the white space around it and without headings like the ones in ``step``."""
        heading = self.step.split("{text}")[0].strip()
        if not any(character.isalpha() for character in heading.replace("{number}", "")):
            return text.strip()  # "3. " could be the text's own
        pattern = re.escape(heading).replace(re.escape("{number}"), r"\d+")
        return re.sub(rf"\A(?:\s*(?:\#{{1,6}}\s*)?{pattern})+", "", text).strip()

    def read(self, text: str, steps: int) -> Critique:
        """The verdicts in a critique of ``steps`` steps; text after the last of them is cut off.

        A verdict belongs to the step whose heading stands before it; without headings verdicts count in their
        order. Of several on one step an incorrect one counts. Other boxes (an answer that the critique
        repeats) and verdicts on steps that do not exist are ignored. Raises :class:`CritiqueError` if a step
        up to the first incorrect one lacks a verdict.
        """
        for mark in self.stop[1:]:  # the model may write the end and the question itself
            text = text.split(mark)[0]
        boxes = f"{re.escape(self.incorrect)}|{re.escape(self.correct)}"
        verdicts: dict[int, bool] = {}
        ends: dict[int, int] = {}
        step, headed = 0, False
        for match in re.finditer(f"{self._headings()}|{boxes}", text):
            if match[0] not in (self.correct, self.incorrect):
                step, headed = int(match[1]), True
                continue
            step += not headed
            verdicts[step] = verdicts.get(step, True) and match[0] == self.correct
            ends[step] = match.end()
        wrong = min((n for n, good in verdicts.items() if not good and n <= steps), default=steps)
        judged = range(1, wrong + 1)
        if not judged or any(n not in verdicts for n in judged):
            raise CritiqueError("a verdict is missing")
        return Critique(
            text=text[: max(ends[n] for n in judged)], verdicts=tuple(verdicts[n] for n in judged)
        )

    def _headings(self) -> str:
        """Pattern of a step's heading at the start of a line, its number as the group; matches nothing if
        steps lack such words."""
        words = self.step.split("{number}")[0].strip()
        if "{number}" not in self.step or not any(map(str.isalpha, words)):
            return "(?!)()"
        return rf"(?m:^[ \t#>*-]*{re.escape(words)}\s*(\d{{1,6}})\b)"


def _fill(template: str, **values: str) -> str:
    """Replace ``{name}`` in one pass, so that braces in a value are left alone."""
    pattern = "|".join(re.escape(f"{{{name}}}") for name in values)
    return re.sub(pattern, lambda match: values[match[0][1:-1]], template)
