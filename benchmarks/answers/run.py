"""Near misses that are graded right, and rewritings that are graded wrong, beside two other graders."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.answers.near_misses import Pair, pairs
from benchmarks.common.figures import DATA, Figures, arguments, figure, left_out, show, write
from surefoot.answers import AnswerChecker, extract_answer

OWN = Path(__file__).parent / "answers.txt"
OTHERS = Path(__file__).parent / "others.py"
Verdicts = list[bool | None]
WRAPPINGS = frozenset({"dollars", "full stop", "bold", "eaten"})
"""Kinds of rewritings that leave the formula as it is; graders of formulas do not claim to read them all."""


def references(data: Path, quick: bool) -> Iterator[tuple[str, list[str]]]:
    """Distinct reference answers by data set; a set that is not there is left out."""
    yield "own", OWN.read_text(encoding="utf-8").splitlines()
    for name, file in (
        ("MATH", "MATH_test_5000"),
        ("MATH-500", "math500_test500"),
        ("AIME 2024", "aime24"),
        ("GSM8K", "gsm8k_test"),
    ):
        path = data / "math" / f"{file}.jsonl.gz"
        if not path.exists():
            left_out(name, f"{path} is not there")
            continue
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        answers = {
            extract_answer(row.get("solution") or "", ["boxed"])
            if name.startswith("MATH")
            else extract_answer(row["answer"], ["hash"]) or str(row["answer"])
            for row in rows
        }
        found = sorted(answer for answer in answers if answer)
        yield name, found[:: 10 if quick else 1]


def grade_ours(tasks: Sequence[Pair]) -> Verdicts:
    """Verdicts of this package, one after another."""
    with AnswerChecker() as checker:
        return checker.grade([(task.answer, task.reference) for task in tasks])


def figures_of(name: str, tasks: Sequence[Pair], verdicts: Verdicts, seconds: float) -> Figures:
    """The rates, with what cannot be compared counted apart."""
    found: Figures = []
    kinds = {task.kind for task in tasks}
    for right, kind, counted in (
        (False, "near misses graded right", kinds),
        (True, "rewritings graded wrong", kinds - WRAPPINGS),
        (True, "wrappings graded wrong", kinds & WRAPPINGS),
    ):
        chosen = [(task, v) for task, v in zip(tasks, verdicts, strict=True) if task.kind in counted]
        graded = [v for task, v in chosen if task.right is right]
        bad, unknown = graded.count(not right), graded.count(None)
        note = f"{bad} of {len(graded)}; {unknown} cannot be compared"
        found.append(figure(f"{name} {kind}", 100 * bad / max(1, len(graded)), note=note))
    return [*found, figure(f"{name} time", 1000 * seconds / max(1, len(tasks)), "ms a pair")]


def main() -> None:
    """Grade all pairs by each grader."""
    parser = arguments(__doc__, "a tenth of the references")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    parser.add_argument("--others", metavar="PYTHON", help="a Python that has math-verify and lm-eval")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N wrong verdicts of a kind")
    options = parser.parse_args()
    figures: Figures = []
    for name, answers in references(options.data, options.quick):
        rng = random.Random(0)
        tasks = [pair for answer in answers if answer for pair in pairs(answer, rng)]
        begin = time.perf_counter()
        verdicts = grade_ours(tasks)
        results = {"ours": (verdicts, time.perf_counter() - begin)}
        if options.others:
            given = json.dumps([(task.answer, task.reference) for task in tasks])
            command = [options.others, str(OTHERS)]
            run = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
            results |= json.loads(run.stdout)
        for grader, (graded, seconds) in results.items():
            figures += show(figures_of(f"{name} {grader}", tasks, graded, seconds))
        shown: Counter[tuple[str, bool | None]] = Counter()
        for task, verdict in zip(tasks, verdicts, strict=True):
            shown[task.kind, verdict] += verdict is not task.right
            if verdict is not task.right and shown[task.kind, verdict] <= options.show:
                print(f"  {task.kind}: {task.answer!r} against {task.reference!r} is {verdict}")
    if not options.others:
        left_out("math-verify, lm-eval", "--others PYTHON (pip install 'math-verify[antlr4_13_2]' lm-eval)")
    write(options, figures)


if __name__ == "__main__":
    main()
