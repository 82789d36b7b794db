"""A scripted solver of the last-digit world whose chance of success from any prefix is known exactly.

It is the reference for anything that estimates a value by sampling: Monte Carlo labels, tree search,
selection.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.worlds.digits.checkpoints import PIECES
from benchmarks.worlds.digits.world import (
    SYMBOLS,
    ArithmeticChain,
    SolutionState,
    apply,
    is_line,
    parse_problem,
)
from surefoot.answers import Solution, final_answer
from surefoot.errors import RecordError
from surefoot.policies.capabilities import IN_PROCESS, Capabilities
from surefoot.protocols import Completion, SampleRequest, SampleResult, Sampling
from surefoot.records import Problem, Usage


@dataclass(frozen=True, kw_only=True)
class NoisySolver:
    """A :class:`surefoot.protocols.Policy` that continues a solution line by line, at known error rates.

    With chance ``error_rate`` (a number, or one for each of ``+ - *``) a line ends in one of the wrong
    digits, each equally likely; later lines continue from the digit written. The answer line always gives the
    running value. ``temperature`` and ``top_p`` change nothing, because the rates are fixed.

    - The prompt is the problem's text, or messages whose last user message is. Anything else is an error of
      that request alone.
    - The prefix is any text of whole lines, correct or wrong. After an answer line, or where the last line is
      not one of this world (a line cut in two, for example), the solver stops at once: an empty completion.
    - ``sampling.stop`` cuts after the first stop text to end, then ``max_tokens`` cuts to that many tokens
      (``finish_reason`` ``length``). Tokens are those of this world's tokenizer, without its marks.
    - A sample depends only on seed, prompt, prefix and its number, not on its batch.

    Raises ``ValueError`` for a rate outside [0, 1], or a mapping that does not have exactly ``+ - *``.
    """

    error_rate: float | Mapping[str, float] = 0.1
    name: str = "noisy-solver"

    def __post_init__(self) -> None:
        if isinstance(self.error_rate, Mapping) and set(self.error_rate) != set(SYMBOLS):
            raise ValueError(
                f"error_rate needs one rate for each of {' '.join(SYMBOLS)}, got {set(self.error_rate)}"
            )
        rates = {symbol: self._rate(symbol) for symbol in SYMBOLS}
        if not all(0.0 <= rate <= 1.0 for rate in rates.values()):
            raise ValueError(f"error_rate must lie in [0, 1], got {rates}")

    def capabilities(self) -> Capabilities:
        """All."""
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Answer all requests, in their order."""
        return [self._answer(request) for request in requests]

    def value(self, problem: Problem, prefix: str = "") -> float:
        """Exact chance that a completion of ``prefix`` ends in the correct answer, in [0, 1].

        Backward recursion over the running values v, one operation t at a time, with e_t the rate and b the
        base: V_t(v) = (1 - e_t) V_{t+1}(r) + e_t / (b - 1) * sum of V_{t+1} over the digits other than r,
        where r is the correct result from v. No token limit is assumed. Where the solver stops at once the
        value is 1 if the prefix ends with the correct answer, else 0. Raises ``RecordError`` for a problem
        of another world.
        """
        chain = parse_problem(problem.text)
        state = _state_after(chain, prefix)
        if state is None:
            return float(final_answer(Solution(prefix=prefix, text=""), ("phrase",)) == str(chain.answer))
        values = np.zeros(chain.base)
        values[chain.answer] = 1.0
        for symbol, digit in reversed(chain.operations[state.done :]):
            right = values[[apply(value, symbol, digit, chain.base) for value in range(chain.base)]]
            rate = self._rate(symbol)
            values = (1 - rate) * right + rate * (values.sum() - right) / (chain.base - 1)
        return float(values[state.value])

    def _rate(self, symbol: str) -> float:
        return self.error_rate[symbol] if isinstance(self.error_rate, Mapping) else self.error_rate

    def _answer(self, request: SampleRequest) -> SampleResult:
        prompt = _prompt_text(request)
        try:
            chain = parse_problem(prompt)
        except RecordError as error:
            return SampleResult(completions=(), usage=Usage(), error=f"policy: {error}")
        completions = tuple(
            _cut(self._write(chain, request.prefix, sample_rng(request, prompt, sample)), request.sampling)
            for sample in range(request.first, request.first + request.n)
        )
        usage = Usage(
            prompt_tokens=len(_token_ends(prompt + request.prefix)),
            completion_tokens=sum(completion.tokens for completion in completions),
            calls=1,
        )
        return SampleResult(completions=completions, usage=usage)

    def _write(self, chain: ArithmeticChain, prefix: str, rng: np.random.Generator) -> str:
        state = _state_after(chain, prefix)
        if state is None:
            return ""
        value, lines = state.value, []
        for symbol, digit in chain.operations[state.done :]:
            result = apply(value, symbol, digit, chain.base)
            if rng.random() < self._rate(symbol):
                result = (result + int(rng.integers(1, chain.base))) % chain.base
            lines.append(f"{value} {symbol} {digit} = {result}\n")
            value = result
        return "".join([*lines, f"Answer: {value}\n"])


def _state_after(chain: ArithmeticChain, prefix: str) -> SolutionState | None:
    """State after ``prefix``; ``None`` where the solver stops: after an answer or a broken last line."""
    state, lines = SolutionState(chain), prefix.splitlines(keepends=True)
    for line in lines:
        state.judge(line)
    stops = state.answered or (lines and not is_line(lines[-1]))
    return None if stops else state


def _prompt_text(request: SampleRequest) -> str:
    if isinstance(request.prompt, str):
        return request.prompt
    users = [message.content or "" for message in request.prompt if message.role == "user"]
    return users[-1] if users else ""


def sample_rng(request: SampleRequest, prompt: str, sample: int) -> np.random.Generator:
    """Random numbers of one sample: Philox, keyed by seed, prompt, prefix and the sample's number."""
    key = json.dumps([request.seed, prompt, request.prefix, sample]).encode()
    digest = hashlib.blake2b(key, digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def _cut(text: str, sampling: Sampling) -> Completion:
    text = text[: min((text.index(s) + len(s) for s in sampling.stop if s in text), default=len(text))]
    ends = _token_ends(text)
    if len(ends) <= sampling.max_tokens:
        return Completion(text=text, finish_reason="stop", tokens=len(ends))
    ends = ends[: sampling.max_tokens]
    return Completion(text=text[: ends[-1] if ends else 0], finish_reason="length", tokens=len(ends))


_PIECE = re.compile("|".join(re.escape(piece) for piece in sorted(PIECES, key=len, reverse=True)))


def _token_ends(text: str) -> list[int]:
    """Where each token ends; text between known pieces is one token, as this world's tokenizer has it."""
    ends, at = [], 0
    for match in _PIECE.finditer(text):
        if match.start() > at:
            ends.append(match.start())
        ends.append(match.end())
        at = match.end()
    return ends if at == len(text) else [*ends, len(text)]
