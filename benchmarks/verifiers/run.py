"""ProcessBench F1 of 21 published verifiers, recomputed from their real step scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.common.figures import Figures, arguments, figure, write
from benchmarks.readers.fover import read_fover_scores
from surefoot.evaluation import Measured, scored_system
from surefoot.evaluation.benchmarks import evaluate_processbench, processbench_cases
from surefoot.formats import read_processbench
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores

FILES = MappingProxyType({"gsm8k": "gsm8k.json.gz", "math": "math.fixed.json.gz"})
RULES = (0.5, "gsm8k", "split")
SOURCE = "published"

KNOWN: Mapping[tuple[str, str], float] = MappingProxyType(
    {
        ("Qwen2.5-Math-PRM-7B", "gsm8k"): 83.7,
        ("Qwen2.5-Math-PRM-7B", "math"): 74.5,
        ("Qwen2.5-Math-7B-PRM800K", "gsm8k"): 66.8,
        ("Qwen2.5-Math-7B-PRM800K", "math"): 61.9,
    }
)
"""F1 at threshold 0.5, percent, computed independently from the same scores."""


def evaluate(data: Path, *, draws: int, rules: Sequence[str | float] = RULES) -> Measured:
    """All verifiers under each rule."""
    subsets = {name: list(read_processbench(data / "processbench" / file)) for name, file in FILES.items()}
    items = [ProblemTrace(problem=i.problem, trace=i.trace) for subset in subsets.values() for i in subset]
    path = data / "calib" / "fover_processbench_scores.jsonl.gz"
    scores: dict[str, list[StepScores]] = {}
    for record in read_fover_scores(path):
        scores.setdefault(record.scorer, []).append(record)
    traces = [item.trace for item in items]
    systems = [scored_system(f"{SOURCE}/{name}", rows, traces) for name, rows in scores.items()]
    return evaluate_processbench(processbench_cases(subsets), systems, rules=rules, draws=draws)


def verifier(score: Measured) -> str:
    """Its published name."""
    return score.system.removeprefix(f"{SOURCE}/")


def figures(found: Measured) -> Figures:
    """F1 of each verifier and subset at the fixed threshold."""
    return [
        figure(f"f1_{subset}_{verifier(score)}", 100 * part.f1)
        for score in found.scores
        if score.rule == "0.5"
        for subset, part in score.subsets.items()
    ]


def disagreeing(found: Measured) -> list[str]:
    """Known figures that were not found again."""
    return [
        f"{verifier(score)}, {subset}"
        for score in found.scores
        if score.rule == "0.5"
        for subset, part in score.subsets.items()
        if round(100 * part.f1.value, 1)
        != KNOWN.get((verifier(score), subset), round(100 * part.f1.value, 1))
    ]


def show(found: Measured) -> None:
    """One line a verifier, best mean F1 at 0.5 first, in Markdown."""
    rules = [f"{rule:g}" if isinstance(rule, float) else rule for rule in RULES]
    by_name: dict[str, dict[str, Measured]] = {}
    for score in found.scores:
        by_name.setdefault(verifier(score), {})[score.rule] = score
    print(f"{found.traces} traces of {found.problems} problems; {found.left_out} of the data lack scores\n")
    headings = ["verifier", *(f"{subset}, {rule}" for rule in rules for subset in FILES), "fitted on gsm8k"]
    print("| " + " | ".join(headings) + " |\n|" + "---|" * len(headings))
    for name, scores in sorted(by_name.items(), key=lambda entry: -entry[1]["0.5"].average_f1.value):
        cells = [f"{scores[rule].subsets[subset].f1:.1%}" for rule in rules for subset in FILES]
        print("| " + " | ".join([name, *cells, f"{scores['gsm8k'].thresholds['all']:.3f}"]) + " |")


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "few bootstrap draws: the intervals are rough")
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    started = time.perf_counter()
    draws = 50 if options.quick else 1000
    found = evaluate(options.data, draws=draws)
    show(found)
    wrong = disagreeing(found)
    print(f"\nknown figures: {len(KNOWN) - len(wrong)} of {len(KNOWN)} agree to one decimal")
    about = {"traces": found.traces, "problems": found.problems, "draws": draws, "threshold": 0.5}
    write(options, figures(found), **about, seconds=round(time.perf_counter() - started, 1))
    if wrong:
        raise SystemExit(f"not as known: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
