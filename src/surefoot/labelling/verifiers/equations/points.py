"""Expressions at many points at once, and points on the common solutions of equations, in floating point.

Model text decides the computation, so all work is counted, and ends with ``WorkLimitError`` at the same
operation on every machine. Random points have fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.labelling.verifiers.equations.exact import Notation
from surefoot.labelling.verifiers.equations.parsing import PLUS_MINUS, Expression, count_nodes, leaves

Points = NDArray[np.complexfloating[Any, Any]]
"""One row per unknown, one column per point."""
Pair = tuple[Expression, Expression]
"""The two sides of an equation."""

MAX_WORK = 80_000
"""Operations on arrays of points per step; about a second."""
MAX_UNKNOWNS = 9

_COLUMNS = 8
_WHOLE = frozenset("nkmjr")
"""Letters that are whole numbers in formulas such as ``\\cos 2\\pi k = 1``."""
_EQUAL = 1e-8
_ON_SOLUTION = 1e-17
"""Sum of squares of the relative residuals at a solution."""
_NEARLY = 1e-6
"""A sum of squares below this that is not a solution: the solver may have come close to one."""
_STEP = 1e-6


class WorkLimitError(ArithmeticError):
    """The equations of a step need more than ``MAX_WORK`` operations."""


def unknowns(nodes: Iterable[Expression], notation: Notation) -> set[str]:
    """Letters and calls whose values are open; a call counts as one unknown, whatever its argument."""
    names: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.kind in ("s", "call"):
            names.add(str(node))
        else:
            pending += node.parts
    return names - constants(notation).keys() if names else names


def constants(notation: Notation) -> dict[str, complex]:
    """Letters with a fixed value."""
    return (
        {"pi": math.pi}
        | ({"i": 1j} if notation.imaginary else {})
        | ({"e": math.e} if notation.euler else {})
    )


def evaluate(node: Expression, point: Mapping[str, Points], notation: Notation) -> Points:
    """Values of ``node``, not finite where undefined. Raises ``KeyError`` for a name without a value."""
    if node.kind == "n":
        return _constant(float(node.value))
    if node.kind in ("s", "call"):
        name = str(node)
        if name in point:
            return point[name]
        return _constant(constants(notation)[name])
    values = [evaluate(part, point, notation) for part in node.parts]
    if node.kind == "fn":
        return _function(node.name, values[0], notation)
    if node.kind == "%":
        return values[0] * float(notation.percent)
    if node.kind == "deg":
        return values[0] if notation.degrees else values[0] * (math.pi / 180)
    if node.kind == "mix" and not notation.mixed:
        return values[0] * values[1]
    return _OPERATIONS[node.kind](*values)


def _constant(number: complex) -> Points:
    return np.full(1, number, dtype=np.complex128)


def _power(base: Points, exponent: Points) -> Points:
    base = base + 0j  # a root of -0 would have another sign
    return np.where((base == 0) & (exponent != 0), 0, np.power(base, exponent))


def _root(radicand: Points, index: Points) -> Points:
    radicand = radicand + 0j
    root = np.power(radicand, 1 / index)
    odd = (np.mod(index.real, 2) == 1) & (radicand.imag == 0) & (radicand.real < 0)
    return np.where(odd, -np.power(-radicand, 1 / index), np.where(radicand == 0, 0, root))


def _factorial(number: Points) -> Points:
    values = [_gamma(x + 1) for x in number.real]
    return np.array(values, dtype=np.complex128)


def _binomial(n: Points, k: Points) -> Points:
    n, k = np.broadcast_arrays(n, k)
    pairs = zip(n.real, k.real, strict=True)
    values = [_gamma(x + 1) / (_gamma(y + 1) * _gamma(x - y + 1)) for x, y in pairs]
    return np.array(values, dtype=np.complex128)


def _gamma(x: float) -> float:
    return math.gamma(x) if 0.1 < x < 170 else math.nan


def _function(name: str, x: Points, notation: Notation) -> Points:
    x = x + 0j
    if name.startswith("log_"):
        return _FUNCTIONS["ln"](x) / math.log(max(int(name[4:]), 2))
    if name == "log":
        name = "ln" if notation.natural else "log10"
    if name not in _FUNCTIONS:
        raise KeyError(name)
    if notation.degrees and name in _OF_ANGLES:
        return _FUNCTIONS[name](x * (math.pi / 180))
    result = _FUNCTIONS[name](x)
    return result * (180 / math.pi) if notation.degrees and name.startswith("arc") else result


_FUNCTIONS: dict[str, Callable[[Points], Points]] = {
    "cis": lambda x: np.exp(1j * x),
    "cot": lambda x: np.reciprocal(np.tan(x)),
    "sec": lambda x: np.reciprocal(np.cos(x)),
    "csc": lambda x: np.reciprocal(np.sin(x)),
    "ln": np.log,
    "log10": np.log10,
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "exp", "sinh", "cosh", "tanh")},
    **{f"arc{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan")},
}
_OF_ANGLES = frozenset({"cis", "sin", "cos", "tan", "cot", "sec", "csc"})
_OPERATIONS: dict[str, Callable[..., Points]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": lambda a, b: a / np.where(b == 0, np.nan, b),
    "^": _power,
    "neg": np.negative,
    "mix": np.add,
    "!": _factorial,
    "sqrt": _root,
    "C": _binomial,
    "abs": lambda a: np.abs(a) + 0j,
    "floor": lambda a: np.floor(a.real + 1e-12) + 0j,
    "ceil": lambda a: np.ceil(a.real - 1e-12) + 0j,
}


@dataclass(frozen=True, kw_only=True)
class Solutions:
    """Points on the common solutions of equations."""

    names: tuple[str, ...]
    points: Points
    """Shape [names, points]; no columns = none was found."""
    closest: float = 0.0
    """Smallest sum of squares of the sides' differences of all starts."""

    @property
    def count(self) -> int:
        return int(self.points.shape[1])

    def select(self, columns: NDArray[np.bool_]) -> Solutions:
        """The points of some columns."""
        return Solutions(names=self.names, points=self.points[:, columns])

    def point(self) -> dict[str, Points]:
        """The points by unknown."""
        return dict(zip(self.names, self.points, strict=True))


@dataclass
class Solver:
    """Decides about equations at points, within the work of one step."""

    notation: Notation
    work: int = field(default=0)

    def values(self, sides: Pair, point: Mapping[str, Points]) -> tuple[Points, Points] | None:
        """Both sides at the points where both are finite; ``None`` if there are none."""
        self._spend(sum(map(count_nodes, sides)))
        try:
            with np.errstate(all="ignore"):
                lhs, rhs = np.broadcast_arrays(*(evaluate(side, point, self.notation) for side in sides))
        except (KeyError, OverflowError):
            return None
        finite = np.isfinite(lhs) & np.isfinite(rhs)
        return (lhs[finite], rhs[finite]) if finite.any() else None

    def relation(self, sides: Pair) -> Literal["identity", "never", "open"] | None:
        """Whether the sides are equal for all values of the unknowns, for no value, or for some.

        Positive values alone suffice for an identity, as ``sqrt(x^2) = x`` is meant for them. *Never* means
        that the difference is the same at all points. ``None`` = no value can be computed.
        """
        names = sorted(unknowns(sides, self.notation))
        if len(names) > 2 * MAX_UNKNOWNS:
            return None
        rng = np.random.default_rng(len(names))
        lefts: list[Points] = []
        differences: list[Points] = []
        for kind in ("positive", "whole", "any"):
            point = {name: _random_values(rng, name, kind) for name in names}
            if PLUS_MINUS.name in point:
                point[PLUS_MINUS.name] = np.resize(np.array([1, -1], dtype=complex), _COLUMNS)
            values = self.values(sides, point)
            if values is None or len(values[0]) < 3:
                continue
            lhs, rhs = values
            if (np.abs(lhs - rhs) <= _EQUAL * (1 + np.abs(lhs) + np.abs(rhs))).all():
                return "identity"
            lefts.append(lhs)
            differences.append(lhs - rhs)
        if not differences:
            return None
        difference = np.concatenate(differences)
        spread = _spread(difference)
        constant = spread <= _EQUAL * min(abs(difference[0]), _spread(np.concatenate(lefts)))
        return "never" if names and constant else "open"

    def solve(
        self,
        equations: Sequence[Pair],
        *,
        names: Iterable[str] = (),
        starts: int = 24,
        iterations: int = 40,
        enough: int = 12,
        seed: int = 0,
        over_complex: bool = False,
    ) -> Solutions:
        """Points on the common solutions, by Levenberg-Marquardt from many starts at once.

        ``names`` are further unknowns that get random values. Starts and solutions are real, or
        ``over_complex`` every other start has an imaginary part. The search ends with ``enough`` solutions.
        """
        sides = [side for pair in equations for side in pair]
        unknown = tuple(sorted(unknowns(sides, self.notation).union(names)))
        rng = np.random.default_rng(seed)
        m, third = len(unknown), starts // 3
        ranges = [
            rng.uniform(0.2, 4, (m, third)),
            rng.uniform(1, 40, (m, third)),
            rng.normal(0, 6, (m, starts - 2 * third)),
        ]
        x: Points = np.concatenate(ranges, axis=1) + 0j
        if over_complex:
            x = x + 1j * rng.normal(0, 3, x.shape) * (np.arange(starts) % 2)
        if not equations or not m:
            return Solutions(names=unknown, points=x)
        if PLUS_MINUS.name in unknown:
            square = Expression(kind="*", parts=(PLUS_MINUS, PLUS_MINUS))
            equations = [*equations, (square, _ONE)]
        with np.errstate(all="ignore"):
            x, squares = self._descend(equations, unknown, x, iterations, enough, over_complex)
        largest = max((float(abs(leaf.value)) for side in sides for leaf in leaves(side, "n")), default=1.0)
        near = (np.abs(x) < 1e3 * max(10.0, largest)).all(axis=0)
        solved = near & (squares < _ON_SOLUTION)
        closest = 0.0 if solved.any() else self._closest(equations, unknown, x)
        return Solutions(names=unknown, points=x[:, solved], closest=closest)

    def satisfiable(self, equations: Sequence[Pair]) -> bool | None:
        """Whether the equations have a common solution. ``None``: none was found, but a start came close."""
        closest = math.inf
        for over_complex in (False, True):
            solutions = self.solve(
                equations,
                starts=36,
                iterations=50,
                enough=1,
                seed=1 + over_complex,
                over_complex=over_complex,
            )
            if solutions.count:
                return True
            closest = min(closest, solutions.closest)
        return None if closest < _NEARLY else False

    def holds_at(self, sides: Pair, solutions: Solutions) -> NDArray[np.bool_] | None:
        """At which of the points where both sides have a value they are equal; ``None`` if there are none."""
        values = self.values(sides, solutions.point())
        if values is None:
            return None
        lhs, rhs = values
        return np.abs(lhs - rhs) <= 1e-5 * (0.02 + np.maximum(np.abs(lhs), np.abs(rhs)))

    def _descend(
        self,
        equations: Sequence[Pair],
        names: tuple[str, ...],
        x: Points,
        iterations: int,
        enough: int,
        over_complex: bool,
    ) -> tuple[Points, NDArray[np.float64]]:
        """Levenberg-Marquardt on every column of ``x`` [unknowns, starts]; also the sums of squares."""
        residuals, jacobian = self._linearise(equations, names, x, over_complex)
        squares = _squares(residuals)
        damping = np.full(x.shape[1], 1e-2)
        identity = np.eye(len(names))
        for iteration in range(iterations):
            transposed = jacobian.conj().transpose(2, 1, 0)  # [starts, unknowns, equations]
            normal = transposed @ jacobian.transpose(2, 0, 1)
            gradient = transposed @ residuals.T[:, :, None]
            diagonal = np.einsum("nkk->nk", normal).real + 1e-9
            normal += identity * (damping[:, None] * diagonal)[:, None, :]
            try:
                step = np.linalg.solve(normal, gradient)[:, :, 0].T
            except np.linalg.LinAlgError:  # one column is singular
                break
            proposal = x - np.nan_to_num(step)
            new_residuals, new_jacobian = self._linearise(equations, names, proposal, over_complex)
            new_squares = _squares(new_residuals)
            better = new_squares < squares
            x = np.where(better, proposal, x)
            residuals = np.where(better, new_residuals, residuals)
            jacobian = np.where(better, new_jacobian, jacobian)
            squares = np.where(better, new_squares, squares)
            damping = np.clip(damping * np.where(better, 0.2, 5), 1e-9, 1e6)
            solved = squares < _ON_SOLUTION / 1e3
            if solved.sum() >= enough or (iteration > 12 and (solved | (damping > 1e3)).all()):
                break
        return x, squares

    def _closest(self, equations: Sequence[Pair], names: tuple[str, ...], x: Points) -> float:
        """Smallest sum of squares of the differences; relative residuals also become small at infinity."""
        total = np.zeros(x.shape[1])
        point = dict(zip(names, x, strict=True))
        with np.errstate(all="ignore"):
            for lhs, rhs in equations:
                difference = evaluate(lhs, point, self.notation) - evaluate(rhs, point, self.notation)
                total = total + np.nan_to_num(np.abs(difference) ** 2, nan=math.inf)
        return float(total.min())

    def _linearise(
        self, equations: Sequence[Pair], names: tuple[str, ...], x: Points, over_complex: bool
    ) -> tuple[Points, Points]:
        """Relative residuals [equations, starts] and their derivatives [equations, unknowns, starts].

        Over the reals, the imaginary parts are residuals too.
        """
        m, starts = x.shape
        steps = _STEP * (1 + np.abs(x))
        moved = np.repeat(x[:, None, :], m + 1, axis=1)
        moved[np.arange(m), np.arange(1, m + 1)] += steps
        point = dict(zip(names, moved.reshape(m, -1), strict=True))
        rows: list[Points] = []
        for lhs, rhs in equations:
            self._spend(count_nodes(lhs) + count_nodes(rhs) + 4)
            a, b = (evaluate(side, point, self.notation) for side in (lhs, rhs))
            relative = np.broadcast_to((a - b) / (1 + np.abs(a) + np.abs(b)), moved[0].size)
            rows += [relative] if over_complex else [relative.real + 0j, relative.imag + 0j]
        values = np.nan_to_num(np.array(rows), nan=1e3, posinf=1e3, neginf=-1e3).reshape(-1, m + 1, starts)
        return values[:, 0], (values[:, 1:] - values[:, :1]) / steps

    def _spend(self, operations: int) -> None:
        self.work += operations
        if self.work > MAX_WORK:
            raise WorkLimitError("too much work")


_ONE = Expression(kind="n", value=1 + 0 * PLUS_MINUS.value)


def _spread(values: Points) -> float:
    return float(np.ptp(values.real) + np.ptp(values.imag))


def _squares(residuals: Points) -> NDArray[np.float64]:
    return np.asarray((residuals.real**2 + residuals.imag**2).sum(axis=0))


def _random_values(rng: np.random.Generator, name: str, kind: str) -> Points:
    if kind == "any":
        return rng.normal(0, 3, _COLUMNS) + 0j
    if kind == "whole" and name in _WHOLE:
        return rng.integers(3, 9, _COLUMNS) + 0j
    return rng.uniform(0.3, 2.7, _COLUMNS) + 0j
