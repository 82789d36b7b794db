"""Chains of exact length, and a scripted policy with misconceptions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.worlds.digits import build_tokenizer
from surefoot.models import read_states

IntArray = NDArray[np.int64]
SYMBOLS = "+-*"
OPERATIONS = {"low": "+-", "medium": "++--*", "high": "+****"}
"""Mixes of operations by recoverability: only multiplication forgets a wrong digit."""
_RARE = 0.01  # chance of an error where there is no misconception
_WORDS = (". Add ", ". Subtract ", ". Multiply by ")


def result(value: IntArray, symbol: IntArray, digit: IntArray) -> IntArray:
    """Last digit of ``value symbol digit``, for arrays of one shape."""
    return np.where(symbol == 0, value + digit, np.where(symbol == 1, value - digit, value * digit)) % 10


@dataclass(frozen=True, kw_only=True)
class Chains:
    """P problems of L operations each."""

    start: IntArray
    """[P]"""
    symbols: IntArray
    """Index into ``SYMBOLS``, [P, L]."""
    digits: IntArray
    """[P, L]"""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> int:
        return self.symbols.shape[1]

    def correct(self) -> IntArray:
        """Correct running values, [P, L]."""
        values, value = [], self.start
        for step in range(self.length):
            value = result(value, self.symbols[:, step], self.digits[:, step])
            values.append(value)
        return np.stack(values, axis=1)

    def rows(self, which: IntArray) -> Chains:
        return Chains(start=self.start[which], symbols=self.symbols[which], digits=self.digits[which])


@dataclass(frozen=True, kw_only=True)
class Misconceptions:
    """The policy: chance of an error at each operation, and the digit that it then mostly writes."""

    rate: NDArray[np.float64]
    """[3, 10, 10] by symbol, value and digit."""
    digit: IntArray
    """[3, 10, 10]"""
    usual: float = 0.8
    """Share of errors that are the usual one; the others are any wrong digit."""

    def chances(self, symbol: IntArray, value: IntArray, digit: IntArray) -> NDArray[np.float64]:
        """Chance of each result, [..., 10]."""
        rate, usual = self.rate[symbol, value, digit], self.digit[symbol, value, digit]
        right = result(value, symbol, digit)
        other = (1 - self.usual) * rate / 9
        chances = np.repeat(other[..., None], 10, axis=-1)
        np.put_along_axis(chances, usual[..., None], (self.usual * rate + other)[..., None], axis=-1)
        np.put_along_axis(chances, right[..., None], (1 - rate)[..., None], axis=-1)
        return chances / chances.sum(axis=-1, keepdims=True)

    def success(self, chains: Chains) -> NDArray[np.float64]:
        """Exact chance of success at each problem, [P]."""
        first = self.chances(chains.symbols[:, 0], chains.start, chains.digits[:, 0])
        return np.asarray((first * self.values(chains)[:, 0]).sum(axis=1))

    def values(self, chains: Chains) -> NDArray[np.float64]:
        """Exact chance of success after each step from each running value, [P, L, 10]."""
        count, length = chains.symbols.shape
        value = np.zeros((count, 10))
        value[np.arange(count), chains.correct()[:, -1]] = 1
        values, all_values = [value], np.broadcast_to(np.arange(10), (count, 10))
        for step in range(length - 1, 0, -1):
            symbol = np.broadcast_to(chains.symbols[:, step, None], (count, 10))
            digit = np.broadcast_to(chains.digits[:, step, None], (count, 10))
            value = np.einsum("pvr,pr->pv", self.chances(symbol, all_values, digit), value)
            values.append(value)
        return np.stack(values[::-1], axis=1)


def draw_problems(rng: np.random.Generator, count: int, length: int, operations: str) -> Chains:
    """Random problems of exactly ``length`` operations."""
    mix = np.array([SYMBOLS.index(symbol) for symbol in operations])
    return Chains(
        start=rng.integers(0, 10, count),
        symbols=mix[rng.integers(0, len(mix), (count, length))],
        digits=rng.integers(0, 10, (count, length)),
    )


def misconceptions(rng: np.random.Generator, length: int, operations: str, accuracy: float) -> Misconceptions:
    """A policy whose accuracy on such problems is ``accuracy``: fewer misconceptions for longer chains."""
    order, high = rng.permutation(300).reshape(3, 10, 10), rng.uniform(0.4, 0.9, (3, 10, 10))
    values = np.broadcast_to(np.arange(10)[None, :, None], (3, 10, 10))
    digits = np.broadcast_to(np.arange(10)[None, None, :], (3, 10, 10))
    right = result(values, np.broadcast_to(np.arange(3)[:, None, None], (3, 10, 10)), digits)
    wrong = (right + rng.integers(1, 10, (3, 10, 10))) % 10
    problems = draw_problems(rng, 2000, length, operations)

    def policy(count: int) -> Misconceptions:
        return Misconceptions(rate=np.where(order < count, high, _RARE), digit=wrong)

    low, most = 0, 300
    while most - low > 1:
        middle = (low + most) // 2
        enough = policy(middle).success(problems).mean() > accuracy
        low, most = (middle, most) if enough else (low, middle)
    return policy(low)


def sample(rng: np.random.Generator, policy: Misconceptions, chains: Chains, samples: int) -> IntArray:
    """Results of each line, [P, samples, L]."""
    value = np.repeat(chains.start[:, None], samples, axis=1)
    lines = []
    for step in range(chains.length):
        symbol, digit = (
            np.repeat(part[:, step, None], samples, axis=1) for part in (chains.symbols, chains.digits)
        )
        chances = policy.chances(symbol, value, digit).cumsum(axis=-1)
        value = (rng.random(value.shape)[..., None] > chances).sum(axis=-1).clip(max=9)
        lines.append(value)
    return np.stack(lines, axis=-1)


def steps_right(chains: Chains, lines: IntArray) -> NDArray[np.bool_]:
    """Whether each line follows from the value before it, [P, samples, L]."""
    before = np.concatenate(
        [np.broadcast_to(chains.start[:, None, None], (*lines.shape[:2], 1)), lines[..., :-1]], axis=-1
    )
    return result(before, chains.symbols[:, None], chains.digits[:, None]) == lines


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Distinct traces of some problems, with the trunk's features of every line."""

    chains: Chains
    """The problem of each distinct trace, [U]."""
    lines: IntArray
    """[U, L]"""
    where: IntArray
    """Number of the distinct trace that each sample is, [P, samples]."""
    features: NDArray[np.float64]
    """[U, L, D]"""

    @property
    def good(self) -> NDArray[np.bool_]:
        """Whether each line follows, [U, L]."""
        return steps_right(self.chains, self.lines[:, None])[:, 0]

    @property
    def outcome(self) -> NDArray[np.bool_]:
        """Whether the answer is right, [U]."""
        return np.asarray(self.lines[:, -1] == self.chains.correct()[:, -1])


def read_traces(trunk: torch.nn.Module, chains: Chains, lines: IntArray) -> Traces:
    """Features of ``lines`` [P, samples, L]: the trunk's state at each result digit, and its log-probability.

    Every distinct token goes through the trunk once.
    """
    problems, samples, length = lines.shape
    numbered = np.repeat(np.arange(problems), samples)[:, None]
    rows, where = np.unique(np.hstack([numbered, lines.reshape(-1, length)]), axis=0, return_inverse=True)
    of = chains.rows(rows[:, 0])
    ids = [_token_ids(of, row, rows[row, 1:]) for row in range(len(rows))]
    first = 4 + 2 * length  # tokens of the problem
    positions = [at for step in range(length) for at in (first + 6 * step + 3, first + 6 * step + 4)]
    states = np.zeros((len(rows), len(positions), trunk.config.hidden_size), dtype=np.float32)
    with torch.inference_mode():
        for output in read_states(trunk.model, ids, [positions] * len(ids)):
            for number, state in output.states.items():
                states[number] = state.numpy()
        logits = trunk.lm_head(torch.from_numpy(states[:, ::2])).log_softmax(dim=-1).numpy()
    digits = np.array([_VOCABULARY[str(digit)] for digit in range(10)])[rows[:, 1:]]
    surprise = np.take_along_axis(logits, digits[..., None], axis=-1).clip(min=-10)
    return Traces(
        chains=of,
        lines=rows[:, 1:],
        where=where.reshape(problems, samples),
        features=np.concatenate([states[:, 1::2], surprise], axis=-1).astype(float),
    )


def _token_ids(chains: Chains, row: int, lines: IntArray) -> tuple[int, ...]:
    value = int(chains.start[row])
    operations = list(zip(chains.symbols[row].tolist(), chains.digits[row].tolist(), strict=True))
    pieces = ["<s>", "Start with ", str(value)]
    for symbol, digit in operations:
        pieces += [_WORDS[symbol], str(digit)]
    pieces.append(".\n")
    for (symbol, digit), line in zip(operations, lines.tolist(), strict=True):
        pieces += [str(value), f" {SYMBOLS[symbol]} ", str(digit), " = ", str(line), "\n"]
        value = line
    return tuple(_VOCABULARY[piece] for piece in pieces)


_VOCABULARY = build_tokenizer().get_vocab()
