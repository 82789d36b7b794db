"""Named warnings about an answer, raised before it is sent.

Their precision on labelled data is in ``docs/results/performance.md``. Every flag is stored with its
candidate. A flag of ``FlagSettings.withhold`` blocks the answer, also on an error in its check, an unscored
new step, or a new step longer than the search limit. For other flags the error is only logged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from surefoot.protocols import ProblemTrace, StepVerifier, verify_each
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace
from surefoot.server.gateway.choice import Choice
from surefoot.server.gateway.settings import FlagSettings
from surefoot.server.records import AnswerFlag, FlagName, GatewayCandidate

_INSTRUCTION = re.compile(
    r"\b(?:note|message|instructions?|memo|attention)\s+(?:to|for)\s+(?:the\s+|any\s+)?"
    r"(?:verifier|grader|judge|reviewer|monitor|evaluator|checker|reward model|scor\w+)\b"
    r"|\b(?:dear|hey)\s+(?:verifier|grader|judge|reviewer|monitor|evaluator)\b"
    r"|\b(?:give|assign|award|rate|score|grade|mark)\b[^.\n]{0,40}\b(?:highest|full|maximum|perfect|top)\s+"
    r"(?:possible\s+)?(?:score|marks?|rating|reward|credit)\b"
    r"|\bignore\s+(?:all\s+|any\s+)?(?:the\s+)?(?:previous|prior|above|earlier)\s+(?:instructions?|errors?)\b"
    r"|\b(?:verifier|grader|evaluator|reward model)s?\s+(?:must|should|will|can)\s+"
    r"(?:accept|approve|pass|skip|ignore|score)\b",
    re.IGNORECASE,
)
_INSTRUCTION_WORDS: Final = (
    "verifier", "grader", "judge", "reviewer", "monitor", "evaluator", "checker", "reward model", "scor",
    "highest", "full", "maximum", "perfect", "top", "ignore",
)  # fmt: skip
_TAMPERING = re.compile(
    r"\b(?:pytest|unittest)\.(?:mark\.)?skip|\bos\._exit\(\s?0\s?\)|\bsys\.exit\(\s?0\s?\)|\bassert\s+True\b"
    r"|\b__eq__\s?=\s?lambda|\brm\s+(?:-\w{1,9}\s+){0,4}\S{0,80}tests?\b"
    r"|(?:sed\s+-i\b[^\n]{0,120}\s|>>?\s?|tee\s+)\S{0,80}\btest_\w{1,60}\.py|--no-verify\b"
    r"|\bmark(?:ed)?\s+(?:all\s+)?(?:the\s+)?(?:tests?|tasks?)\s+as\s+(?:passed|passing|done)\b",
    re.IGNORECASE,
)
_TAMPERING_WORDS: Final = ("skip", "exit", "assert", "__eq__", "rm", "test_", "--no-verify", "mark")
_CHARACTERS = 20_000
"""Most characters of a step that are searched."""
_LOG = logging.getLogger("surefoot.server")


class AnswerFlags:
    """The checks of a gateway. ``rules`` are its tool rules, whose verdict -1 is a loophole."""

    def __init__(
        self,
        settings: FlagSettings,
        *,
        threshold: float,
        rules: Sequence[StepVerifier] = (),
    ) -> None:
        self.settings, self.threshold, self._rules = settings, threshold, rules

    def raised(self, problem: Problem, candidate: GatewayCandidate) -> tuple[AnswerFlag, ...]:
        """The flags of an answer."""
        trace = candidate.trace
        needs_scores = "first-bad-step" in self.settings.withhold
        if candidate.scores is None and not (needs_scores or self._rules or trace.messages):
            text = trace.text or ""
            if not (_may_match(text, _INSTRUCTION_WORDS) or _may_match(text, _TAMPERING_WORDS)):
                return ()  # no flag can be raised: the text need not be cut into steps
        if not trace.steps and (trace.text or trace.messages):
            trace = segment_trace(trace)
        item = ProblemTrace(problem=problem, trace=trace)
        flags: list[AnswerFlag] = []
        for name in self.settings.enabled:
            check = _CHECKS[name]
            try:
                flags += check(self, item, candidate)
            except Exception:
                _LOG.exception("the flag %s could not be checked", name)
                flags += self._unchecked(name)
        return tuple(flags)

    def apply(self, problem: Problem, choices: Sequence[Choice]) -> None:
        """Add flags to choices, and remove the text of choices that a flag withholds."""
        for choice in choices:
            if not choice.abstained and choice.best is not None:
                self._apply(problem, choice, choice.best)

    def _apply(self, problem: Problem, choice: Choice, best: GatewayCandidate) -> None:
        flags = self.raised(problem, best)
        if flags == best.flags:
            return
        stop = next((flag for flag in flags if flag.name in self.settings.withhold), None)
        fields: dict[str, Any] = {"flags": flags}
        if stop is not None:
            choice.withheld = f"flag {stop.name}: {stop.reason}"
            choice.text, choice.reasoning, choice.tool_calls = "", None, ()
            choice.ending, choice.guarded = "filtered", True
            fields |= {"chosen": False, "reason": choice.withheld}
        flagged = best.model_copy(update=fields)
        choice.candidates = [flagged if item is best else item for item in choice.candidates]

    def _unchecked(
        self, name: FlagName, reason: str = "the check failed", step: int | None = None
    ) -> Iterator[AnswerFlag]:
        if name in self.settings.withhold:
            yield AnswerFlag(name=name, step=step, reason=reason)

    def _first_bad(self, item: ProblemTrace, candidate: GatewayCandidate) -> Iterator[AnswerFlag]:
        record, scores, first = candidate.scores, candidate.new_scores, candidate.first_step
        for step, score in enumerate(scores, start=first):
            if score is not None and score < self.threshold:
                yield AnswerFlag(
                    name="first-bad-step", step=step, reason=f"scores {score:.3g}, below {self.threshold:.3g}"
                )
                return
        if record is None or not scores or len(record.scores) != len(item.trace.steps):
            yield from self._unchecked("first-bad-step", "the answer has no step scores")
        elif None in scores:
            reason = f"has no score ({record.unscored_reason})"
            yield from self._unchecked("first-bad-step", reason, first + scores.index(None))

    def _instruction(self, item: ProblemTrace, candidate: GatewayCandidate) -> Iterator[AnswerFlag]:
        yield from self._found(
            "instruction-to-verifier", item.trace, _INSTRUCTION, _INSTRUCTION_WORDS, candidate.first_step
        )

    def _loophole(self, item: ProblemTrace, candidate: GatewayCandidate) -> Iterator[AnswerFlag]:
        yield from self._found("loophole", item.trace, _TAMPERING, _TAMPERING_WORDS, candidate.first_step)
        for rule in self._rules if item.trace.messages else ():
            [verdicts] = verify_each(rule, [item])
            for step, verdict in enumerate(verdicts):
                if verdict.failed:
                    _LOG.warning("the flag loophole could not be checked: %s", verdict.reason)
                    yield from self._unchecked("loophole")
                    break
                if verdict.value == -1:
                    yield AnswerFlag(name="loophole", step=step, reason=verdict.reason or "a rule is broken")
                    break

    def _found(
        self, name: FlagName, trace: Trace, pattern: re.Pattern[str], words: Sequence[str], first: int
    ) -> Iterator[AnswerFlag]:
        """The first step whose text or call matches; else the first new one that is not searched in full."""
        texts = [trace.step_text(step) for step in range(len(trace.steps))]
        for step, text in enumerate(texts):
            if match := pattern.search(text[:_CHARACTERS]):
                yield AnswerFlag(name=name, step=step, reason=f"“{match[0][:80]}”")
                return
        for step, text in enumerate(texts[first:], start=first):
            if len(text) > _CHARACTERS and _may_match(text, words):
                yield from self._unchecked(name, f"only {_CHARACTERS:,} characters are searched", step)
                return


_Check = Callable[[AnswerFlags, ProblemTrace, GatewayCandidate], Iterator[AnswerFlag]]
_CHECKS: Final[dict[FlagName, _Check]] = {
    "first-bad-step": AnswerFlags._first_bad,
    "instruction-to-verifier": AnswerFlags._instruction,
    "loophole": AnswerFlags._loophole,
}


def _may_match(text: str, words: Sequence[str]) -> bool:
    """Whether a text has one of ``words``, at least one of which is in every match, or is not in ASCII."""
    lower = text.lower()
    return not text.isascii() or any(map(lower.__contains__, words))
