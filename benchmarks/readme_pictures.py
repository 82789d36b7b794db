"""The two pictures of the README, drawn from a finished quickstart.

    surefoot quickstart --out runs/quickstart
    python benchmarks/readme_pictures.py [--run runs/quickstart] [--out docs/images]

``scored-solution.svg``: a solution of a test problem with the PRM's score at each step. It is the first one
that reaches the correct answer over a wrong step and whose first step below the threshold is the one the
exact checker finds. ``selection.svg``: accuracy against the number of samples, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path

from surefoot.display import TraceView, show
from surefoot.evaluation.palette import SERIES
from surefoot.io import read_records
from surefoot.lab import check_steps
from surefoot.records import Problem, StepScores, Trace

THRESHOLD = 0.4
CURVES = {
    "pass@N, the ceiling": ("pass_at", None, "#8c959f", ":"),
    "PRM, weighted vote by product": ("selectors", "prm weighted vote product", "#0550ae", "-"),
    "ORM, weighted vote by product": ("selectors", "orm weighted vote product", "#bc4c00", "-"),
    "PRM, best of N by lowest step": ("prm", None, "#218bff", "--"),
    "ORM, best of N by lowest step": ("orm_lowest_step", None, "#fb8f44", "--"),
    "ORM, best of N by last step": ("orm", None, "#fb8f44", "-."),
    "majority vote": ("majority", None, "#57606a", "-"),
}
"""Label of a line: where its points are in ``summary.json``, its colour and style."""


def example(run: Path) -> tuple[Problem, TraceView]:
    """The solution to draw. Raises ``SystemExit`` if the run has none."""
    problems = {problem.id: problem for problem in read_records(run / "test-problems.jsonl", Problem)}
    scores = read_records(run / "scores-prm.jsonl", StepScores)
    for trace, record in zip(read_records(run / "test-traces.jsonl", Trace), scores, strict=True):
        problem = problems[trace.problem_id]
        view = show(trace, record, threshold=THRESHOLD)
        verdicts = check_steps(problem, trace)
        wrong = next((step for step, verdict in enumerate(verdicts) if verdict.value == -1), 0)
        inside = 1 < wrong < len(verdicts) - 2
        if trace.outcome and inside and view.first_below == wrong:
            return problem, view
    raise SystemExit(f"{run}: no solution fits; run the quickstart at its full size")


def draw_solution(problem: Problem, view: TraceView, path: Path) -> None:
    """Rows of step and score, from red at 0 to green at 1."""
    width, row, top = 760, 30, 66
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + row * len(view.steps) + 14}" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="15">',
        '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
        f'<text x="20" y="30" fill="#1b1f24" font-size="12">{escape(problem.text)}</text>',
        '<text x="20" y="54" fill="#57606a" font-size="12">step   PRM score</text>',
    ]
    for step, text in enumerate(view.steps):
        value = view.scores[step] or 0.0
        y = top + row * step
        mark = step == view.first_below
        colour, edge = SERIES[value < view.threshold], SERIES[1] if mark else "none"
        strength = 0.08 + 0.5 * abs(value - view.threshold)
        label = f"{step + 1}     {value:.2f}     {escape(text.strip())}"
        parts += [
            f'<rect x="12" y="{y}" width="736" height="26" rx="4" fill="{colour}" '
            f'fill-opacity="{strength:.2f}" stroke="{edge}"/>',
            f'<text x="20" y="{y + 18}" fill="#1b1f24" xml:space="preserve">{label}</text>',
        ]
        if mark:
            said = f"▽ first score below {view.threshold:g}"
            parts.append(f'<text x="430" y="{y + 18}" fill="#8f3c00" font-weight="bold">{said}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def draw_curves(summary: dict, path: Path) -> None:
    """Accuracy against the number of samples."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    rcParams["svg.hashsalt"] = "surefoot"  # equal input gives equal bytes
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, (key, name, colour, style) in CURVES.items():
        curve = summary[key] if name is None else summary[key][name]
        sizes = [int(size) for size in curve]
        values = [[100 * point[part] for point in curve.values()] for part in ("value", "low", "high")]
        axes.plot(sizes, values[0], style, color=colour, label=label, linewidth=1.8)
        axes.fill_between(sizes, values[1], values[2], color=colour, alpha=0.08, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="samples per problem", ylabel="problems answered correctly (%)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    draw_solution(*example(args.run), args.out / "scored-solution.svg")
    draw_curves(json.loads((args.run / "summary.json").read_text("utf-8")), args.out / "selection.svg")


if __name__ == "__main__":
    main()
