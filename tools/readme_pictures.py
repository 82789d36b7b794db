r"""The two pictures of the README.

    python -m benchmarks.prm_vs_orm.run --first-seed 10 --seeds 1 --test-seed 2000000 --training-seeds 5 \
        --out runs/confirmation --json runs/confirmation.json
    python tools/readme_pictures.py [--figures runs/confirmation.json] [--out docs/images]

``checked-solution.svg``: the first solution of ``examples/gsm8k.jsonl`` with the verdict of the arithmetic
verifier on each step. ``selection.svg``: accuracy against the number of samples in the run.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from textwrap import wrap

from surefoot.labelling import EquationVerifier
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace

SOLUTIONS = Path(__file__).parents[1] / "examples" / "gsm8k.jsonl"
MARKS = {1: ("✓", "right"), -1: ("✗", "wrong"), None: ("·", "open")}
"""Mark and class of a verdict; each has a mark, so that colour is not needed."""
STYLE = """
text { fill: #1b1f24 } .paper { fill: #ffffff } .soft { fill: #57606a }
.wrong { fill: #b34a00 } .right { fill: #005a92 }
.row { fill: #d55e00; opacity: .16 } .bold { font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117 } .soft { fill: #9198a1 }
  .wrong { fill: #ff9a4d } .right { fill: #6cb8f0 }
}
""".strip()
CURVES = {
    "pass@N, the ceiling": ("pass_at", "#7f7f7f", ":"),
    "PRM, weighted vote by product": ("prm weighted vote product", "#0072b2", "-"),
    "ORM, weighted vote by product": ("orm weighted vote product", "#d55e00", "-"),
    "PRM, best of N by lowest step": ("prm", "#56b4e9", "--"),
    "ORM, best of N by lowest step": ("orm_lowest_step", "#e69f00", "--"),
    "ORM, best of N by last step": ("orm", "#e69f00", "-."),
    "majority vote": ("majority", "#009e73", "-"),
}
"""Label of a line: the name of its curve, its colour and style."""


def checked(row: dict[str, str]) -> tuple[ProblemTrace, list[Verdict]]:
    """A row of ``SOLUTIONS`` with a verdict on each step."""
    problem = Problem(text=row["question"], answer=row["answer"])
    item = ProblemTrace(
        problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=row["solution"]))
    )
    return item, EquationVerifier().verify([item])[0]


def draw_solution(item: ProblemTrace, verdicts: list[Verdict], path: Path) -> None:
    """The question, then a line for each step; the reason stands below a step that does not hold."""
    width, line, y = 860, 24, 22
    parts = []

    def text(x: int, words: str, kind: str = "", size: int = 15) -> None:
        css = f' class="{kind}"' if kind else ""
        parts.append(f'<text x="{x}" y="{y}" font-size="{size}"{css}>{escape(words)}</text>')

    for words in wrap(item.problem.text, 120):
        text(20, words, "soft", 13)
        y += 18
    y += 14
    for step, verdict in enumerate(verdicts):
        mark, kind = MARKS[None if verdict.value is None else int(verdict.value)]
        wrong = kind == "wrong"
        if wrong:
            parts.append(
                f'<rect class="row" x="10" y="{y - 18}" width="{width - 20}" height="{2 * line}" rx="4"/>'
            )
        text(20, str(step + 1), "soft")
        text(44, mark, f"{kind} bold")
        text(68, item.trace.step_text(step).strip())
        y += line
        if wrong:
            text(68, f"← first error: {verdict.reason}", "wrong bold", 13)
            y += line
    text(20, "GSM8K grades this answer as correct. A language model wrote it; a rule checked it.", "soft", 13)
    frame = f'<rect class="paper" width="{width}" height="{y + 16}" rx="8"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 16}" '
        'font-family="system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif">'
    )
    path.write_text("\n".join([head, f"<style>{STYLE}</style>", frame, *parts, "</svg>"]) + "\n", "utf-8")


def draw_curves(curves: dict, path: Path) -> None:
    """Accuracy against the number of samples."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    rcParams["svg.hashsalt"] = "surefoot"  # equal input gives equal bytes
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for label, (name, colour, style) in CURVES.items():
        curve = curves[name]
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
    parser.add_argument("--figures", type=Path, default=Path("runs/confirmation.json"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    row = json.loads(SOLUTIONS.read_text("utf-8").splitlines()[0])
    draw_solution(*checked(row), args.out / "checked-solution.svg")
    if args.figures.is_file():
        figures = json.loads(args.figures.read_text("utf-8"))
        draw_curves(figures["setting"]["by_seed"][0]["curves"], args.out / "selection.svg")
    else:
        print(f"{args.figures} is not there: selection.svg is as it was")


if __name__ == "__main__":
    main()
