"""Equations in steps, against human labels: what is flagged by which rule, and how often wrongly."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import re
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from benchmarks.common.figures import Figures, arguments, figure, left_out, write
from benchmarks.common.figures import show as show_figures
from surefoot.formats import read_gsm8k_solutions, read_prm800k_steps, read_processbench
from surefoot.labelling import EquationCheck, EquationVerifier
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import BlankLine, Line, segment_trace
from surefoot.stats import Bootstrap

HELD_OUT = slice(120, 240)
"""Problems of PRM800K in the order of the draw; flags on the first 120 were read to improve the rules."""
_RIGHT = frozenset({"holds", "rounded", "follows"})
KINDS = ("numbers", "letters", "rewriting")
_ANNOTATION = re.compile(r"<<([^<>]*)>>")


@dataclass(frozen=True)
class Row:
    """One checked step."""

    problem: str
    text: str
    checks: tuple[EquationCheck, ...]
    label: float | None = None

    @property
    def flag(self) -> EquationCheck | None:
        """The first equation that is wrong."""
        return next((check for check in self.checks if check.state == "fails"), None)

    @property
    def flagged(self) -> bool:
        """Whether the verdict is -1."""
        return self.flag is not None

    @property
    def judged(self) -> bool:
        """Whether an equation was decided."""
        return any(check.state in _RIGHT | {"restated", "fails"} for check in self.checks)

    @property
    def right(self) -> bool:
        """Whether the verdict is +1."""
        states = {check.state for check in self.checks}
        return bool(states & _RIGHT) and states <= _RIGHT | {"restated"}

    @property
    def follows(self) -> bool:
        """Whether the verdict is +1, because of earlier equations."""
        return self.right and any(check.state == "follows" for check in self.checks)


class Checker:
    """A verifier whose time per step is measured."""

    def __init__(self) -> None:
        self.verifier = EquationVerifier()
        self.seconds: list[float] = []
        self._seen: set[tuple[str, ...]] = set()

    def rows(self, item: ProblemTrace) -> list[Row]:
        """The steps of one trace; a step after a prefix that was read before takes no time of its own."""
        rows = []
        texts = [item.trace.step_text(index) for index in range(len(item.trace.steps))]
        for length, text in enumerate(texts, start=1):
            prefix = replace(item, trace=item.trace.model_copy(update={"steps": item.trace.steps[:length]}))
            begin = time.process_time()
            checks = self.verifier.check(prefix)[-1]
            key = (item.problem.text, *texts[:length])
            if key not in self._seen:
                self._seen.add(key)
                self.seconds.append(time.process_time() - begin)
            rows.append(Row(item.problem.text, text, checks))
        return rows


def held_out(problems: Iterable[str], *, quick: bool) -> set[str]:
    """The seeded draw of problems."""
    parts = [text for text in set(problems) if zlib.crc32(text.encode()) % 8 in (5, 6, 7)]
    drawn_problems = sorted(parts, key=lambda text: hashlib.sha256(b"equations" + text.encode()).digest())
    return set(drawn_problems[HELD_OUT][: 15 if quick else None])


def on_prm800k(path: Path, quick: bool, shown: int) -> Figures:
    """Rated rows of the held-out problems, each text once for a prefix."""
    items = list(read_prm800k_steps(path))
    problems = held_out((item.problem.text for item in items), quick=quick)
    checker, rows = Checker(), list[Row]()
    seen: set[Hashable] = set()
    for item in items:
        if item.problem.text not in problems:
            continue
        steps = checker.rows(ProblemTrace(problem=item.problem, trace=item.trace))
        for label in item.labels:
            key = (item.problem.id, tuple(step.text for step in steps[: label.step + 1]))
            if label.value is not None and key not in seen:
                seen.add(key)
                rows.append(replace(steps[label.step], label=label.value))
    show("PRM800K", rows, shown)
    counts = per_problem(
        rows,
        lambda row: (
            row.flagged,
            row.flagged and row.label == -1,
            row.label == -1,
            row.flagged and row.label == 1,
            row.label == 1,
            row.judged,
            1,
            row.follows,
            row.follows and row.label == -1,
            row.right,
            row.right and row.label == -1,
            *(row.flag is not None and row.flag.kind == kind for kind in KINDS),
            *(row.flag is not None and row.flag.kind == kind and row.label == -1 for kind in KINDS),
        ),
    )
    figures = ratios(
        counts,
        {
            "precision": (1, 0),
            "recall": (1, 2),
            "false_alarms": (3, 4),
            "judged": (5, 6),
            "follows": (7, 6),
            "follows_bad": (8, 7),
            "right": (9, 6),
            "right_bad": (10, 9),
            "base_bad": (2, 6),
            **{f"precision_{kind}": (15 + number, 11 + number) for number, kind in enumerate(KINDS)},
        },
    )
    spent = 1e3 * np.array(checker.seconds)
    figures += [
        figure("mean_ms", float(spent.mean()), "ms per step"),
        figure("p95_ms", float(np.quantile(spent, 0.95)), "ms"),
    ]
    return figures


def on_processbench(name: str, path: Path, quick: bool, shown: int) -> Figures:
    """First errors; by kind, first flags at the error, after it, and before it or on a correct trace."""
    checker = Checker()
    counts: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    places: Counter[tuple[str, str]] = Counter()
    steps_right: Counter[str] = Counter()
    alarms: list[Row] = []
    for item in islice(read_processbench(path), 0, None, 8 if quick else 1):
        steps = checker.rows(ProblemTrace(problem=item.problem, trace=item.trace))
        first_flag = next((index for index, step in enumerate(steps) if step.flagged), None)
        first_error = next((label.step for label in item.labels if label.value == -1), None)
        right = first_flag == first_error
        correct = first_error is None
        counts[item.problem.text].append((correct, correct and right, not correct, not correct and right))
        for index, step in enumerate(steps[: None if correct else first_error + 1]):
            kind = "first_bad" if index == first_error else "good"
            steps_right.update([kind] + [f"{kind}_right"] * step.right + [f"{kind}_follows"] * step.follows)
        if first_flag is None:
            continue
        misplaced = correct or first_flag < first_error
        place = "at_error" if right else "misplaced" if misplaced else "after_error"
        places[steps[first_flag].flag.kind, place] += 1
        if misplaced:
            alarms.append(steps[first_flag])
    show(f"ProcessBench {name}: flags on correct traces or before the first error", alarms, shown)
    totals = [np.array([np.sum(rows, axis=0) for rows in counts.values()], dtype=float)]

    def statistics(sums: np.ndarray) -> np.ndarray:
        t = sums[:, 0]
        correct, wrong = t[:, 1] / t[:, 0], t[:, 3] / t[:, 2]
        return np.stack([2 * correct * wrong / (correct + wrong), wrong, correct], axis=1)

    intervals = Bootstrap(seed=0).totals(totals, statistics)
    names = ("f1", "accuracy_on_wrong", "accuracy_on_correct")
    figures = [
        figure(f"processbench_{name}_{part}", cell, "share")
        for part, cell in zip(names, intervals, strict=True)
    ]
    figures += [
        figure(f"processbench_{name}_{kind}_{place}", float(number), "first flags")
        for (kind, place), number in sorted(places.items())
    ]
    for part in ("right", "follows"):
        good, bad = steps_right[f"good_{part}"], steps_right[f"first_bad_{part}"]
        unit = f"of {good + bad} steps up to the first error"
        figures.append(figure(f"processbench_{name}_{part}_bad", bad / max(good + bad, 1), unit))
    spent = 1e3 * np.array(checker.seconds)
    return [*figures, figure(f"processbench_{name}_mean_ms", float(spent.mean()), "ms per step")]


def on_pool(path: Path, quick: bool, shown: int) -> Figures:
    """Four solutions a problem: those with a right answer, and the others."""
    checker, alarms = Checker(), list[Row]()
    counts: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in islice(lines, 20 if quick else None):
            record = json.loads(line)
            problem = Problem(text=record["problem"])
            for number, candidate in enumerate(record["candidates"][::8][:4]):
                trace = Trace(problem_id=problem.id, text=candidate["text"], sample=number)
                item = ProblemTrace(problem=problem, trace=segment_trace(trace, BlankLine()))
                flags = [step for step in checker.rows(item) if step.flagged]
                correct = bool(candidate["correct"])
                counts[problem.text].append(
                    (correct, correct and flags != [], not correct, not correct and flags != [])
                )
                alarms += flags[:1] if correct else []
    show("MATH-500 pool: first flags of solutions with a right answer", alarms, shown)
    names = {"pool_flagged_of_right_answers": (1, 0), "pool_flagged_of_wrong_answers": (3, 2)}
    return ratios(np.array([np.sum(rows, axis=0) for rows in counts.values()], dtype=float), names)


def on_gsm8k(path: Path, quick: bool, shown: int) -> Figures:
    """Annotations, against another evaluator, and the steps of the reference solutions."""
    verifier = EquationVerifier()
    equations = list(annotations(path, 200 if quick else None))
    states = []
    for equation in equations:
        problem = Problem(text="How many?")
        trace = segment_trace(Trace(problem_id=problem.id, text=f"<<{equation}>>"), Line())
        (checks,) = verifier.check(ProblemTrace(problem=problem, trace=trace))
        states.append(checks[0].state if checks else "unchecked")
    false = sum(s == "fails" and is_right(e) is True for e, s in zip(equations, states, strict=True))
    figures = [
        figure("gsm8k_annotations_unchecked", states.count("unchecked"), f"of {len(equations)}"),
        figure("gsm8k_annotations_false_alarms", false, f"of {len(equations)}"),
    ]
    checker, rows = Checker(), list[Row]()
    for item in islice(read_gsm8k_solutions(path), 200 if quick else 2000):
        rows += checker.rows(item)[:-1]  # the last is the answer line
    show("GSM8K: flags on reference solutions", [row for row in rows if row.flagged], shown)
    counts = per_problem(rows, lambda row: (row.flagged, row.judged, 1))
    return [*figures, *ratios(counts, {"gsm8k_solutions_flagged": (0, 2), "gsm8k_solutions_judged": (1, 2)})]


def per_problem(rows: Sequence[Row], count: Callable[[Row], tuple[float, ...]]) -> np.ndarray:
    """Sums of ``count`` over the rows of each problem, shape [problems, counts]."""
    sums: dict[str, np.ndarray] = {}
    for row in rows:
        sums[row.problem] = sums.get(row.problem, 0) + np.array(count(row), dtype=float)
    return np.array(list(sums.values()))


def ratios(counts: np.ndarray, parts: dict[str, tuple[int, int]]) -> Figures:
    """Figures of ratios of two columns, with intervals over problems."""
    totals = counts.sum(axis=0)
    parts = {name: columns for name, columns in parts.items() if totals[columns[1]]}
    tops, bottoms = zip(*parts.values(), strict=True)
    with np.errstate(invalid="ignore"):  # a draw without any of a rare kind
        intervals = Bootstrap(seed=0).totals(
            [counts], lambda sums: sums[:, 0][:, list(tops)] / sums[:, 0][:, list(bottoms)]
        )
    return [
        figure(name, cell, f"{totals[top]:.0f} of {totals[bottom]:.0f}")
        for (name, (top, bottom)), cell in zip(parts.items(), intervals, strict=True)
    ]


def show(title: str, rows: Sequence[Row], most: int) -> None:
    """Print the flagged rows for a reader."""
    flagged = [row for row in rows if row.flagged]
    print(f"{title}: {len(rows)} rows, {len(flagged)} flagged")
    for number, row in enumerate(flagged[:most], start=1):
        wrong = next(check for check in row.checks if check.state == "fails")
        print(f"--- {number} rated {row.label}\nPROBLEM {row.problem}\nSTEP {row.text}")
        print(f"FLAG {wrong.kind}: {wrong.text}\n     {wrong.reason}")


def annotations(path: Path, most: int | None) -> Iterator[str]:
    """GSM8K's calculator annotations, without their brackets."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in islice(lines, most):
            yield from _ANNOTATION.findall(json.loads(line)["answer"])


def is_right(equation: str) -> bool | None:
    """Judgement of an annotation by Python's own parser; a decimal may be rounded; ``None`` = cannot say."""
    try:
        sides = [re.sub(r"(?<![\d.])0+(?=\d)", "", side.strip()) for side in equation.split("=")]
        values = [_evaluate(ast.parse(side, mode="eval").body, side) for side in sides]
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError):
        return None
    half = [Fraction(1, 2 * 10 ** len(side.partition(".")[2])) if "." in side else 0 for side in sides]
    return all(abs(x - y) <= max(h, i) for (x, h), (y, i) in pairwise(zip(values, half, strict=True)))


def _evaluate(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.BinOp):
        operation: Callable[[Fraction, Fraction], Fraction] = {
            ast.Add: Fraction.__add__,
            ast.Sub: Fraction.__sub__,
            ast.Mult: Fraction.__mul__,
            ast.Div: Fraction.__truediv__,
        }[type(node.op)]
        return operation(_evaluate(node.left, source), _evaluate(node.right, source))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, source)
    return Fraction(ast.get_source_segment(source, node) or "")


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "an eighth of the problems or less")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--show", type=int, default=20, help="how many flags to print for each set")
    options = parser.parse_args()
    bench = options.data / "processbench"
    tasks: list[tuple[Path, Callable[[Path, bool, int], Figures]]] = [
        (options.data / "prm800k/phase1_train_plus.jsonl.gz", on_prm800k),
        (bench / "gsm8k.json.gz", lambda *args: on_processbench("gsm8k", *args)),
        (bench / "math.fixed.json.gz", lambda *args: on_processbench("math", *args)),
        (options.data / "bon/math500_prm_scored_pool.jsonl.gz", on_pool),
        (options.data / "math/gsm8k_train.jsonl.gz", on_gsm8k),
    ]
    figures: Figures = []
    for path, task in tasks:
        if path.exists():
            figures += show_figures(task(path, options.quick, options.show))
        else:
            left_out(path.name, f"{path} is not there")
    if not figures:
        sys.exit(f"{options.data} has none of the files; see README.md")
    write(options, figures)


if __name__ == "__main__":
    main()
