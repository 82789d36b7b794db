"""Selectors on stored candidates with stored scores, compared with majority and pass@N.

    python -m benchmarks.verifiers.best_of_n --data DIR [--quick] [--json FILE]

``DIR`` holds two published pools: ``bon/math500_prm_scored_pool.jsonl.gz`` (250 problems of MATH-500, step
scores of a process reward model) and ``bon/qwen25math_math100x8_rm.jsonl.gz`` (100 problems, an outcome
reward model). Answers are read from the texts and compared here. Most candidates of the first pool were
found by beam search with the very model that scores them: they are not independent samples, and weak ones by
its own measure are missing. The rival of every selector is majority on the same candidates: a difference
above 0 is in favour of the scorer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import replace
from pathlib import Path

from surefoot import __version__
from surefoot.answers import AnswerChecker
from surefoot.evaluation import (
    BestOfNResult,
    SelectorCurve,
    best_of_n_section,
    evaluate_best_of_n,
    grade_stored,
    judged_candidates,
)
from surefoot.formats import read_candidate_pool
from surefoot.records import StepScores
from surefoot.stats import Interval

POOLS = {
    "prm": ("bon/math500_prm_scored_pool.jsonl.gz", [1, 2, 4, 8, 16, 24]),
    "orm": ("bon/qwen25math_math100x8_rm.jsonl.gz", [1, 2, 4, 8]),
}
QUICK = 80
"""Problems of each pool with --quick."""


def study(path: Path, sizes: list[int], checker: AnswerChecker, limit: int | None) -> BestOfNResult:
    """Grade a pool and draw all curves."""
    pools = list(read_candidate_pool(path))[:limit]
    stored = grade_stored(pools, checker, ("boxed",))
    print(
        f"{path.name}: {stored.differing} of {stored.verdicts} stated verdicts differ from the grading here"
    )
    candidates = judged_candidates(stored.traces, checker, least=max(sizes))
    candidates = replace(candidates, dropped={**stored.dropped, **candidates.dropped})
    by_scorer: dict[str, list[StepScores]] = {}
    for record in stored.scores:
        by_scorer.setdefault(record.scorer, []).append(record)
    return evaluate_best_of_n(candidates, by_scorer, sizes=sizes)


def table(result: BestOfNResult) -> None:
    """Accuracy of each selector, then counts of dropped candidates and each scorer against majority."""
    print(f"{'selector':28}" + "".join(f"{f'N={size}':>22}" for size in result.sizes))
    for curve in result.curves:
        print(f"{curve.name:28}" + "".join(f"{format(e, '.1%'):>22}" for e in curve.accuracy.values()))
    print("less majority, points")
    for curve in result.curves:
        if curve.minus_majority:
            print(
                f"{curve.name:28}"
                + "".join(f"{format(100 * e, '+.1f'):>22}" for e in curve.minus_majority.values())
            )
    for reason, count in result.dropped.items():
        print(f"left out: {count} {reason}")
    for cards in best_of_n_section(result).cards.values():
        print(*(card.line for card in cards), sep="\n", end="\n\n")


def figures(pool: str, result: BestOfNResult) -> list[dict[str, object]]:
    """One line for each selector and N; accuracies as shares, differences in points."""
    found = []
    for curve in result.curves:
        name = f"{pool}_{slug(curve)}"
        found += [line(f"{name}_at_{size}", e, "share", 1) for size, e in curve.accuracy.items()]
        found += [
            line(f"{name}_minus_majority_at_{size}", e, "points", 100)
            for size, e in curve.minus_majority.items()
        ]
    return found


def slug(curve: SelectorCurve) -> str:
    """``pass``, ``majority``, ``best_of_n_min``, ``weighted_vote_min`` …"""
    return "_".join(filter(None, (curve.rule, curve.aggregation)))


def line(name: str, interval: Interval, unit: str, factor: int) -> dict[str, object]:
    """One figure of the output file; nothing here is a ratio."""
    value, low, high = (factor * bound for bound in (interval.value, interval.low, interval.high))
    return {"name": name, "value": value, "unit": unit, "ratio": None, "low": low, "high": high}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="directory of the pools")
    parser.add_argument("--quick", action="store_true", help="80 problems of each pool")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    result, settings = [], {}
    with AnswerChecker() as checker:
        for name, (file, sizes) in POOLS.items():
            found = study(options.data / file, sizes, checker, QUICK if options.quick else None)
            table(found)
            result += figures(name, found)
            settings[name] = {
                "file": file,
                "problems": found.problems,
                "candidates": found.traces,
                "dropped": dict(found.dropped),
            }
        for reason, count in checker.failures.items():
            print(f"{count} comparisons of answers failed: {reason}")
    if options.json:
        setting = {"version": __version__, "pools": settings, "quick": options.quick}
        setting |= {"machine": platform.machine(), "cores": os.cpu_count()}
        options.json.write_text(json.dumps({"figures": result, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
