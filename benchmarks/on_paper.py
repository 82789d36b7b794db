"""What labelling three amounts of steps costs, by labeller: tokens, hours of a GPU, money and disk.

    python benchmarks/on_paper.py [--read-rate 40000] [--write-rate 6000] [--price-hour 2.5] [--json FILE]

Nothing is labelled. For each data set 400 made-up solutions with its mean numbers are labelled by the
package's own labellers on simulated completions, and the tokens multiplied.
The rates of a GPU and its price are inputs, not measurements; processor time and bytes were measured
(docs/results/scale.md). The tables are Markdown.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _simulated_costs import CHARACTERS_PER_TOKEN, predict

from surefoot import Problem, Trace, Usage, __version__
from surefoot.answers import Grader
from surefoot.labelling import Estimate, MonteCarloLabeller
from surefoot.policies import PromptFormat
from surefoot.protocols import Labeller, Policy, ProblemTrace
from surefoot.segment import Line, segment_trace
from surefoot.work import Rates, predict_hours

SIMULATED = 400
A_PROBLEM = 4
"""Solutions of one."""
ROLLOUTS = 8
JUDGE_READS, JUDGE_WRITES = 500, 600
"""Tokens of the judge's instructions and examples, and of its reply."""
CALL_S = 1.2e-3
"""Processor time of ``label mc`` for one request."""
VERIFIED_STEP_S = 1.5e-4
"""Processor time of the arithmetic verifier for one step."""
LABEL_BYTES, TRACE_BYTES = 359, 700
"""Of a label in JSON Lines, and of a solution beside its text."""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Numbers of solutions to label."""

    name: str
    solutions: int
    steps: int
    """Of a solution."""
    step_tokens: int
    correct: float
    """Share of the solutions."""
    problem_tokens: int = 60

    @property
    def labels(self) -> int:
        """Steps in all."""
        return self.solutions * self.steps


DATA_SETS = (
    DataSet(name="PRM800K", solutions=75_000, steps=11, step_tokens=22, correct=0.14),
    DataSet(name="Math-Shepherd", solutions=440_000, steps=6, step_tokens=30, correct=0.5),
    DataSet(name="a billion steps", solutions=100_000_000, steps=10, step_tokens=25, correct=0.5),
)

Build = Callable[[Policy, Grader], Labeller]


def solutions(data: DataSet) -> list[ProblemTrace]:
    """``SIMULATED`` made-up solutions with these numbers."""
    rng = random.Random(0)
    line = "x" * (round(data.step_tokens * CHARACTERS_PER_TOKEN) - 8)
    items = []
    for number in range(SIMULATED // A_PROBLEM):
        text = f"{number:04d}" + "p" * round(data.problem_tokens * CHARACTERS_PER_TOKEN)
        problem = Problem(text=text, answer="1")
        for sample in range(A_PROBLEM):
            lines = "".join(f"{line} {rng.randrange(10**6)}\n" for _ in range(data.steps))
            right = (number * A_PROBLEM + sample) * 0.618 % 1 < data.correct
            trace = Trace(problem_id=problem.id, text=lines, outcome=right, finish_reason="stop")
            items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return items


def by_rollouts(data: DataSet, items: list[ProblemTrace], build: Build) -> Usage:
    """Tokens of a labeller that completes prefixes."""
    usage = predict(items, build, prompt=PromptFormat()).usage
    return times(usage, data.solutions / len(items))


def monte_carlo(estimate: Estimate, order: str) -> Build:
    """A labeller by rollouts."""
    return lambda policy, grader: MonteCarloLabeller(
        policy=policy, grader=grader, estimate=estimate, order=order
    )  # type: ignore[arg-type]


def times(usage: Usage, factor: float) -> Usage:
    """``factor`` times as many of each."""
    return Usage(**{name: round(count * factor) for name, count in usage.model_dump().items()})


def usages(data: DataSet) -> dict[str, Usage]:
    """Tokens by labeller."""
    items = solutions(data)
    whole = data.problem_tokens + data.steps * data.step_tokens
    judged = Usage(prompt_tokens=whole + JUDGE_READS, completion_tokens=JUDGE_WRITES, calls=1)
    return {
        "rollouts from every step, 8": by_rollouts(
            data, items, monte_carlo(Estimate(rollouts=ROLLOUTS), "every")
        ),
        "until the first error, at most 8": by_rollouts(
            data, items, monte_carlo(Estimate(kind="hard", rollouts=ROLLOUTS), "until-error")
        ),
        "binary search, at most 8": by_rollouts(
            data, items, monte_carlo(Estimate(kind="hard", rollouts=ROLLOUTS), "bisect")
        ),
        "judge, one reply": times(judged, data.solutions),
        "reward model, one reading": times(Usage(prompt_tokens=whole), data.solutions),
        "arithmetic verifier": Usage(),
    }


def row(data: DataSet, name: str, usage: Usage, rates: Rates, price_hour: float) -> list[str]:
    """A line of the table."""
    hours = predict_hours(usage, rates) or 0
    cpu_s = usage.calls * CALL_S if usage.calls else data.labels * VERIFIED_STEP_S * (not usage.tokens)
    return [
        name,
        short(usage.prompt_tokens),
        short(usage.completion_tokens),
        short(usage.calls),
        short(hours),
        short(hours * price_hour),
        short(cpu_s / 3600),
    ]


def short(number: float) -> str:
    """Two digits that count, with a word for thousands."""
    for size, word in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{float(f'{number / size:.2g}'):g}{word}"
    return f"{float(f'{number:.2g}'):g}" if number else "–"


HEADINGS = ("labeller", "tokens read", "written", "requests", "GPU hours", "price", "processor hours")


def table(data: DataSet, rates: Rates, price_hour: float) -> tuple[list[str], list[dict[str, float | str]]]:
    """Markdown lines of one data set, and its figures."""
    disk = data.labels * LABEL_BYTES + data.solutions * (
        TRACE_BYTES + data.steps * data.step_tokens * CHARACTERS_PER_TOKEN
    )
    lines = [
        f"**{data.name}**: {data.solutions:,} solutions of {data.steps} steps of {data.step_tokens} tokens, "
        f"{data.correct:.0%} correct; {disk / 1e9:,.1f} GB of solutions and labels in JSON Lines",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
    ]
    figures: list[dict[str, float | str]] = []
    for name, usage in usages(data).items():
        lines.append(f"| {' | '.join(row(data, name, usage, rates, price_hour))} |")
        hours = predict_hours(usage, rates) or 0.0
        figures.append({"name": f"{data.name}: {name}", "value": hours, "unit": "GPU hours"})
    return [*lines, ""], figures


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--read-rate", type=float, default=40_000, help="tokens that a GPU reads a second")
    parser.add_argument("--write-rate", type=float, default=6_000, help="tokens that it writes a second")
    parser.add_argument("--price-hour", type=float, default=2.5, help="price of its hour")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("read_rate", "write_rate", "price_hour")}
    figures: list[dict[str, float | str]] = []
    for data in DATA_SETS:
        rates = Rates(read_rate=options.read_rate, write_rate=options.write_rate)
        lines, some = table(data, rates, options.price_hour)
        print("\n".join(lines))
        figures += some
    if options.json:
        setting = {"version": __version__, "simulated": SIMULATED, **given}
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
