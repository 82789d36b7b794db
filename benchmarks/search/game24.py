"""The Game of 24: what a search solves with an exact verifier, against the states that it looks at.

    python -m benchmarks.search.game24 [--quick] [--data DIR] [--json FILE]

The policy knows the rules and nothing else: each step is a legal move drawn at random. The scorer is exact
(``examples/game_of_24.py``: can 24 still be made?), so what is measured is the search,
not a model. Problems are the hundred hard ones of Tree of Thoughts (``bon/tot_game24_search_values.json.gz``
in ``--data``; without it a hundred solvable ones made here). Tree of Thoughts (arXiv 2305.10601, table 2)
solves 45 % of them at breadth 1 and 74 % at breadth 5, with moves proposed and valued by GPT-4: another
policy and another scorer, so their figures stand beside, and are no rival of equal means.

``solved_at_breadth_N``: share of problems solved by beam search with that width, in percent, ``ratio``
against best of as many random games as cost the same moves, with the same verifier.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import platform
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np

from surefoot import __version__
from surefoot.models import LabelScorer
from surefoot.policies import ScriptedPolicy
from surefoot.protocols import ProblemTrace, SampleRequest
from surefoot.records import Problem, content_id
from surefoot.search import BeamSearch, BestOfNSearch, Search, SearchResult, Steps, run_search
from surefoot.stats import bootstrap_mean

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from game_of_24 import Game24Values, play, problem_numbers, reachable

DATA = Path(__file__).parents[2] / "../shared/data"
EXPAND = 8
"""Moves drawn from each state; there are at most 36 from four numbers."""
WIDTHS = (1, 2, 5)
STEPS = Steps(max_steps=8)
Held = list[tuple[Fraction, str]]
"""Numbers that are left, each with the expression that made it."""


def write_step(request: SampleRequest, sample: int) -> str:
    """Random legal moves to the end of the game; the stop text ends a step."""
    held = start(str(request.prompt))
    lines = request.prefix.splitlines()
    for line in lines:
        held = after(held, line)
    seed = int(content_id(request.seed, sample, request.prompt, request.prefix), 16)
    rng = np.random.default_rng(seed)
    text = ""
    while len(held) > 1:
        line = random_move(held, rng)
        held = after(held, line)
        text += line + "\n"
    answered = bool(lines) and lines[-1].startswith("Answer")
    return text if answered else text + f"Answer: {held[0][1]} = {held[0][0]}\n"


def start(prompt: str) -> Held:
    """The four numbers of the problem."""
    return [(number, str(number)) for number in problem_numbers(prompt) or ()]


def random_move(held: Held, rng: np.random.Generator) -> str:
    """One legal move, each with equal chance."""
    moves = []
    for one, other in permutations(range(len(held)), 2):
        a, b = held[one][0], held[other][0]
        for symbol in "+-*/" if one < other else "-/":
            if symbol == "/" and b == 0:
                continue
            made = a / b if symbol == "/" else {"+": a + b, "-": a - b, "*": a * b}[symbol]
            rest = [held[k][0] for k in range(len(held)) if k not in (one, other)]
            left = " ".join(map(str, sorted([*rest, made])))
            moves.append(f"{a} {symbol} {b} = {made} (left: {left})")
    return moves[rng.integers(len(moves))]


def after(held: Held, line: str) -> Held:
    """What is left after a move that this policy wrote."""
    if line.startswith("Answer"):
        return held
    a, symbol, b = line.split(" = ")[0].split(" ")
    left = list(held)
    parts = []
    for shown in (a, b):
        part = next(one for one in left if one[0] == Fraction(shown))
        left.remove(part)
        parts.append(part)
    (x, first), (y, second) = parts
    made = x + y if symbol == "+" else x - y if symbol == "-" else x * y if symbol == "*" else x / y
    return [*left, (made, f"({first} {symbol} {second})")]


def problems(data: Path, count: int) -> list[Problem]:
    """Tree of Thoughts' problems, or solvable ones of numbers from 1 to 13."""
    file = data / "bon/tot_game24_search_values.json.gz"
    if file.is_file():
        with gzip.open(file) as stored:
            texts = [row["steps"][0]["x"] for row in json.load(stored)]
    else:
        print(f"{file} is not there: solvable problems are made")
        rng = np.random.default_rng(0)
        texts = []
        while len(texts) < count:
            numbers = sorted(int(number) for number in rng.integers(1, 14, 4))
            if reachable(tuple(map(Fraction, numbers))):
                texts.append(" ".join(map(str, numbers)))
    return [Problem(text=f"Use {text} to make 24.", answer="24") for text in texts[:count]]


def run(search: Search, items: Sequence[Problem]) -> list[SearchResult]:
    """Search all problems with the exact verifier."""
    policy = ScriptedPolicy(write_step, name="random-moves")
    scorer = LabelScorer(Game24Values(), name="exact", kind="value")
    return asyncio.run(run_search(search, items, policy, scorer, steps=STEPS, aggregation="last"))


def solved(problem: Problem, result: SearchResult) -> bool:
    """Whether the chosen solution's answer uses the four numbers and makes 24."""
    if result.chosen is None:
        return False
    trace = result.candidates[result.chosen]
    last = play(ProblemTrace(problem=problem, trace=trace))[-1]
    return trace.step_text(len(trace.steps) - 1).startswith("Answer") and last.verdict.value == 1


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the first 40 of the hundred problems")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    items = problems(options.data, 40 if options.quick else 100)
    figures, about = [], {}
    for width in WIDTHS:
        ours = run(BeamSearch(width=width, expand=EXPAND, rule="best_of_n"), items)
        moves = float(np.mean([result.counts.sampled for result in ours]))
        games = max(1, round(moves / 4))  # a game is three moves and an answer
        rival = run(BestOfNSearch(n=games, rule="best_of_n"), items)
        shares = [
            np.array([solved(problem, result) for problem, result in zip(items, found, strict=True)], float)
            for found in (ours, rival)
        ]
        interval = bootstrap_mean(shares[0], rng=np.random.default_rng(0))
        nodes = [float(np.mean([result.counts.nodes for result in found])) for found in (ours, rival)]
        percent = 100 * interval
        print(
            f"breadth {width}: {interval:.0%} solved, {nodes[0]:.0f} states, "
            f"{moves:.0f} moves drawn; best of {games} random games: {100 * shares[1].mean():.0f} %, "
            f"{nodes[1]:.0f} states"
        )
        ratio = float(shares[0].mean() / shares[1].mean()) if shares[1].any() else None
        figures.append(
            {
                "name": f"solved_at_breadth_{width}",
                "value": percent.value,
                "unit": "percent",
                "ratio": ratio,
                "low": percent.low,
                "high": percent.high,
            }
        )
        about[width] = {"states": nodes[0], "moves": moves, "random_games": games}
    if options.json:
        setting = {
            "version": __version__,
            "quick": options.quick,
            "problems": len(items),
            "expand": EXPAND,
            "cost": about,
        }
        setting["machine"] = platform.machine()
        options.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")


if __name__ == "__main__":
    main()
