"""A scripted verifier of the last-digit world with a known error rate, and the words it needs.

Each verdict comes after the digit that the line ends in and the one it should; or (``worked=False``) alone::

    Step 1) 0 should be 0 -> \\boxed{correct}               Step 1) \\boxed{correct}
    Step 2) 2 should be 0 -> \\boxed{incorrect}             Step 2) \\boxed{incorrect}

The digit world's tokenizer lacks the words of a critique: ``PIECES`` are added to it before training.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.worlds.digits.solver import sample_rng
from benchmarks.worlds.digits.world import SolutionState, apply, parse_problem
from surefoot.errors import RecordError
from surefoot.models import VerifierFormat
from surefoot.policies import IN_PROCESS, Capabilities
from surefoot.protocols import Completion, SampleRequest, SampleResult
from surefoot.records import Usage

TEMPLATE = "{problem}\n\n{solution}\n"
STEP = "Step {number}) {text}"
CORRECT, INCORRECT = r"\boxed{correct}", r"\boxed{incorrect}"
OPENING, END, QUESTION = "<think>", "</think>", "\nIs the solution correct?"
YES, NO = " Yes", " No"
SHOULD, ARROW = " should be ", " -> "
PIECES = ("\nStep ", ") ", SHOULD, ARROW, CORRECT, INCORRECT, OPENING, END, QUESTION, YES, NO)
"""Tokens to add to the digit world's tokenizer."""
FORMAT = VerifierFormat(
    template=TEMPLATE,
    chat=False,
    step=STEP,
    opening=OPENING,
    correct=CORRECT,
    incorrect=INCORRECT,
    end=END,
    question=QUESTION,
    yes=(YES,),
    no=(NO,),
)

_HEADING = re.compile(r"Step \d+\) ")


@dataclass(frozen=True, kw_only=True)
class NoisyCritic:
    """A :class:`surefoot.protocols.Policy` that continues a prompt of the digit world with a critique.

    With chance ``error_rate`` a verdict is the opposite of the truth; the critique ends at the first step it
    calls incorrect. With chance ``omit_rate`` it ends before its last verdict, which makes it unreadable. The
    truth is the world's: a line is judged from the running value of the trace; a restatement is correct.
    """

    worked: bool = True
    """Whether each verdict comes after the digit that stands there and the one that should."""
    error_rate: float = 0.0
    omit_rate: float = 0.0
    name: str = "noisy-critic"

    def capabilities(self) -> Capabilities:
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order; a prompt of another world is an error of that request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: SampleRequest) -> SampleResult:
        prompt = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content or ""
        problem, _, solution = prompt.partition("\n")
        try:
            state = SolutionState(parse_problem(problem))
        except RecordError as error:
            return SampleResult(completions=(), usage=Usage(), error=f"policy: {error}")
        lines = [f"{_HEADING.sub('', line)}\n" for line in solution.split("\n") if line]
        truth = self._truth(state, lines)
        texts = [
            self._write(truth, sample_rng(request, str(request.prompt), sample))
            for sample in range(request.first, request.first + request.n)
        ]
        completions = tuple(
            Completion(text=text, finish_reason="stop", tokens=len(text.split())) for text in texts
        )
        usage = Usage(
            prompt_tokens=len(prompt.split()), completion_tokens=sum(c.tokens for c in completions), calls=1
        )
        return SampleResult(completions=completions, usage=usage)

    def _truth(self, state: SolutionState, lines: list[str]) -> list[tuple[str, bool]]:
        """The check of each step, and whether the step is correct."""
        truth = []
        for line in lines:
            check = (
                f"{_digit(line)}{SHOULD}{_digit(_correct_line(state, line))}{ARROW}" if self.worked else ""
            )
            truth.append((check, state.judge(line).value != -1))
        return truth

    def _write(self, truth: list[tuple[str, bool]], rng: np.random.Generator) -> str:
        parts = []
        for number, (check, correct) in enumerate(truth, 1):
            verdict = correct != bool(rng.random() < self.error_rate)
            parts.append(f"\nStep {number}) {check}{CORRECT if verdict else INCORRECT}")
            if not verdict:
                break
        if rng.random() < self.omit_rate:
            parts[-1] = parts[-1].split("\\boxed")[0]
        return "".join(parts) + f"\n{END}"


def _digit(line: str) -> str:
    """The digit a line ends in."""
    match = re.search(r"\d\s*$", line)
    return match[0].strip() if match else "nothing"


def _correct_line(state: SolutionState, line: str) -> str:
    """The line that would be correct here; a restatement if ``line`` is one, else the next thing to do."""
    if re.fullmatch(r"Now \d\n", line):
        return f"Now {state.value}"
    if state.done == len(state.chain.operations):
        return f"Answer: {state.value}"
    symbol, digit = state.chain.operations[state.done]
    return f"{state.value} {symbol} {digit} = {apply(state.value, symbol, digit, state.chain.base)}"
