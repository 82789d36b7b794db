"""The arithmetic and Game of 24 verifiers on real solutions: what they check, and whether they cry wolf.

    python benchmarks/arithmetic_verifier.py --data DIR [--quick] [--json FILE]

``DIR`` holds ``math/gsm8k_train.jsonl.gz`` (GSM8K), ``prm800k/phase1_test.jsonl.gz`` (PRM800K, phase 1, one
rated step a row), ``processbench/{gsm8k,math.fixed}.json.gz`` and the Tree of Thoughts files
``bon/tot_game24_{cot100,search_values}.json.gz``. What is missing is left out, and said so.

A *false alarm* is an equation that is called false and is not. For GSM8K's annotations an evaluator of its
own decides; elsewhere the alarms on steps that humans accepted are printed for the reader to judge. Times are
CPU time of this process; algebra runs in another and is counted apart.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from surefoot import __version__
from surefoot.formats import read_gsm8k_solutions, read_prm800k_steps, read_processbench
from surefoot.labelling import ArithmeticVerifier, EquationCheck
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace
from surefoot.stats import wilson_interval

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from game_of_24 import play

_ANNOTATION = re.compile(r"<<([^<>]*)>>")
Figure = dict[str, object]


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


def on_annotations(path: Path, most: int | None) -> list[Figure]:
    """Each annotation by itself."""
    equations = list(annotations(path, most))
    with ArithmeticVerifier() as verifier:
        begin = time.process_time()
        checks = [verifier.check(f"<<{equation}>>") for equation in equations]
        micros = 1e6 * (time.process_time() - begin) / len(equations)
    found = [_state(check) for check in checks]
    truth = [is_right(equation) for equation in equations]
    false = [e for e, s, t in zip(equations, found, truth, strict=True) if s == "alarm" and t]
    wrong = sum(t is False for t in truth)
    print(
        f"GSM8K annotations: {len(equations)}; {dict(Counter(found))}; {wrong} wrong by the second evaluator"
    )
    print(f"  not checked: {[e for e, s in zip(equations, found, strict=True) if s == 'unchecked']}")
    return [
        _share("gsm8k_annotations_checked", sum(s != "unchecked" for s in found), len(found)),
        _share("gsm8k_annotations_not_holding", found.count("alarm"), len(found)),
        _share("gsm8k_annotations_false_alarms", len(false), sum(t is True for t in truth)),
        _figure("gsm8k_annotations_time", micros, "microseconds per annotation"),
    ]


def on_steps(name: str, steps: Iterable[tuple[str, str, str]], shown: int) -> list[Figure]:
    """Steps ``(group, text, problem)``; of the group "accepted" the alarms are printed."""
    rows = [row for row in steps if row[1].strip()]
    before = os.times()
    with ArithmeticVerifier() as verifier:
        checks = [verifier.check(text, problem=problem) for _, text, problem in rows]
        micros = 1e6 * (os.times().user + os.times().system - before.user - before.system) / len(rows)
    after = os.times()
    algebra = after.children_user + after.children_system - before.children_user - before.children_system
    print(
        f"{name}: {len(rows)} steps, {micros:.0f} us a step, {algebra:.1f} s of algebra in the other process"
    )
    figures = [_figure(f"{name}_time", micros, "microseconds per step")]
    for group in ("accepted", "wrong"):
        states = [_state(check) for check, row in zip(checks, rows, strict=True) if row[0] == group]
        if not states:
            continue
        print(f"  {group}: {dict(Counter(states))}")
        figures.append(
            _share(f"{name}_{group}_checked", sum(s in ("holds", "alarm") for s in states), len(states))
        )
        figures.append(_share(f"{name}_{group}_alarms", states.count("alarm"), len(states)))
    alarms = [
        check
        for found, row in zip(checks, rows, strict=True)
        if row[0] == "accepted"
        for check in found
        if check.state == "fails"
    ]
    for check in alarms[:shown]:
        print(f"    called false on an accepted step: {check.text}   [{check.reason}]")
    return figures


def _state(checks: list[EquationCheck]) -> str:
    states = {check.state for check in checks}
    if "fails" in states:
        return "alarm"
    if states & {"holds", "rounded"}:
        return "holds"
    return "unchecked" if states else "no equation"


def solution_steps(items: Iterable[ProblemTrace]) -> Iterator[tuple[str, str, str]]:
    """All steps of reference solutions but the last, which is the answer line."""
    for item in items:
        for step in range(len(item.trace.steps) - 1):
            yield "accepted", item.trace.step_text(step), item.problem.text


def labelled_steps(items: Iterable[LabelledTrace]) -> Iterator[tuple[str, str, str]]:
    """Steps with a human label, each text once for a problem."""
    names = {1.0: "accepted", -1.0: "wrong"}
    seen = set()
    for item in items:
        for label in item.labels:
            key = (item.problem.id, item.trace.step_text(label.step))
            if label.value is not None and key not in seen:
                seen.add(key)
                yield names.get(label.value, "other"), key[1], item.problem.text


def on_games(folder: Path, most: int | None) -> list[Figure]:
    """Chains of thought for the Game of 24, against the judgement that was published with them."""
    with gzip.open(folder / "tot_game24_search_values.json.gz") as file:
        numbers = {game["idx"]: game["steps"][0]["x"] for game in json.load(file)}
    with gzip.open(folder / "tot_game24_cot100.json.gz") as file:
        games = json.load(file)[:most]
    first: Counter[str] = Counter()
    traces = steps = agree = lucky = 0
    begin = time.process_time()
    for game in games:
        problem = Problem(text=numbers[game["idx"]])
        for number, (text, info) in enumerate(zip(game["ys"], game["infos"], strict=True)):
            trace = segment_trace(Trace(problem_id=problem.id, text=text, sample=number), Line())
            judged = play(ProblemTrace(problem=problem, trace=trace))
            wrong = [
                trace.step_text(step).strip() for step, one in enumerate(judged) if one.verdict.value == -1
            ]
            moves = [step for step, one in enumerate(judged) if one.verdict.value is not None]
            errors = [moves.index(step) + 1 for step in moves if judged[step].verdict.value == -1]
            kind = (
                "answer"
                if wrong and wrong[0].startswith("Answer")
                else f"line {errors[0]}"
                if errors
                else "none"
            )
            right = judged[-1].verdict.value == 1 and "Answer:" in text if judged else False
            first[kind] += 1
            lucky += right and bool(wrong)
            agree += right == bool(info["r"])
            traces, steps = traces + 1, steps + len(judged)
    micros = 1e6 * (time.process_time() - begin) / steps
    print(f"Game of 24: {traces} traces, {steps} steps; first wrong step: {dict(first.most_common())}")
    print(f"  {lucky} right answers after a wrong step")
    shares = [
        _share(f"game24_first_wrong_{kind.replace(' ', '_')}", n, traces) for kind, n in sorted(first.items())
    ]
    return [
        *shares,
        _share("game24_agreement", agree, traces),
        _figure("game24_time", micros, "microseconds per step"),
    ]


def _share(name: str, count: int, total: int) -> Figure:
    low, high = wilson_interval(count, total).bounds
    return _figure(name, count / total, f"share of {total}", low, high)


def _figure(
    name: str, value: float, unit: str, low: float | None = None, high: float | None = None
) -> Figure:
    between = f" [{low:.5f}, {high:.5f}]" if low is not None else ""
    print(f"  {name}: {value:.5g} {unit}{between}")
    return {"name": name, "value": value, "unit": unit, "ratio": None, "low": low, "high": high}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--quick", action="store_true", help="the first 500 solutions or traces of each file")
    parser.add_argument("--alarms", type=int, default=50, help="how many alarms to print for each set")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    most, shown = (500 if options.quick else None), options.alarms
    gsm8k = options.data / "math/gsm8k_train.jsonl.gz"
    prm800k = options.data / "prm800k/phase1_test.jsonl.gz"
    bench = options.data / "processbench"
    tasks: list[tuple[Path, Callable[[], list[Figure]]]] = [
        (gsm8k, lambda: on_annotations(gsm8k, most)),
        (
            gsm8k,
            lambda: on_steps("gsm8k_text", solution_steps(islice(read_gsm8k_solutions(gsm8k), most)), shown),
        ),
        (
            prm800k,
            lambda: on_steps("prm800k", labelled_steps(islice(read_prm800k_steps(prm800k), most)), shown),
        ),
    ]
    for name, path in (("gsm8k", bench / "gsm8k.json.gz"), ("math", bench / "math.fixed.json.gz")):

        def on_bench(name: str = name, path: Path = path) -> list[Figure]:
            return on_steps(
                f"processbench_{name}", labelled_steps(islice(read_processbench(path), most)), shown
            )

        tasks.append((path, on_bench))
    games = options.data / "bon"
    tasks.append(
        (games / "tot_game24_cot100.json.gz", lambda: on_games(games, 20 if options.quick else None))
    )
    figures: list[Figure] = []
    for path, task in tasks:
        if path.exists():
            figures += task()
        else:
            print(f"left out: {path} is not there", file=sys.stderr)
    if options.json:
        setting: dict[str, Any] = {
            "version": __version__,
            "quick": options.quick,
            "python": platform.python_version(),
        }
        setting |= {"machine": platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
