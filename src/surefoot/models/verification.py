"""What a verifier that writes says of a trace: its chains, and those that are being written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from surefoot.models.verifier_format import Critique
from surefoot.protocols import SampleResult
from surefoot.records import Message, Usage

Prompt = str | tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """One valid critique with its answer to the question."""

    text: str
    """All rounds, up to the last verdict."""
    verdicts: tuple[bool, ...]
    """Of the last round; one a step up to the first incorrect one."""
    score: float
    """P(yes) / (P(yes) + P(no)), in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What a verifier says of one trace."""

    steps: int
    chains: tuple[Chain, ...]
    invalid: Counter[str]
    """Chains that gave no verdicts or no odds, by reason. They are never scored."""
    usage: Usage = field(default_factory=Usage)

    @property
    def solution(self) -> float | None:
        """Mean score of the chains; ``None`` if none is valid."""
        if not self.chains:
            return None
        return sum(chain.score for chain in self.chains) / len(self.chains)

    @property
    def scores(self) -> tuple[float | None, ...]:
        """One score a step; see :class:`surefoot.models.generative.GenerativeVerifier`."""
        if not self.chains:
            return (None,) * self.steps
        firsts = [len(c.verdicts) - 1 if False in c.verdicts else self.steps for c in self.chains]
        shares = (sum(first > step for first in firsts) / len(firsts) for step in range(self.steps - 1))
        return (*shares, self.solution)


class Job:
    """One distinct prompt."""

    def __init__(self, prompt: Prompt, steps: int, number: int) -> None:
        self.prompt, self.steps, self.number = prompt, steps, number
        self.invalid: Counter[str] = Counter()
        self.usage = Usage()

    def texts(self, result: SampleResult, asked: int) -> dict[int, str]:
        """Finished completions by their number; the rest is counted."""
        self.usage += Usage(verifier_tokens=result.usage.tokens, calls=result.usage.calls)
        if missing := asked - len(result.completions):
            self.invalid["request failed" + (f": {result.error}" if result.error else "")] += missing
        finished = {}
        for number, completion in enumerate(result.completions):
            if completion.finish_reason == "length":
                self.invalid["cut off at max_tokens"] += 1
            else:
                finished[number] = completion.text
        return finished


@dataclass
class Draft:
    """A chain that is being written: ``before`` is in place, ``text`` is the newest round."""

    job: Job
    number: int
    before: str
    text: str
    critique: Critique | None = None

    @property
    def whole(self) -> str:
        """All rounds up to the last verdict."""
        return self.before + (self.critique.text if self.critique else self.text)
