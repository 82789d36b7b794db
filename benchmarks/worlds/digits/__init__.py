"""Chains of digits modulo 10: the truth of every step is known, and tiny models live in this world.

Problems are generated and every step is checked exactly; a scripted solver has known error rates; two
language models and a reward model are stored in ``shipped``. README.md of this folder's parent describes it.
"""

from benchmarks.worlds.digits.checkpoints import POLICY, PRM, TRUNK, build_tokenizer
from benchmarks.worlds.digits.notes import (
    NoteSolution,
    PlantedMistake,
    note_problems,
    planted_mistakes,
    read_solution,
    with_note,
)
from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import (
    Difficulty,
    DigitVerifier,
    ExactLabeller,
    check_steps,
    draw_chain,
    generate_problems,
    parse_problem,
    worked_solution,
)

__all__ = [
    "POLICY",
    "PRM",
    "TRUNK",
    "Difficulty",
    "DigitVerifier",
    "ExactLabeller",
    "NoisySolver",
    "NoteSolution",
    "PlantedMistake",
    "build_tokenizer",
    "check_steps",
    "draw_chain",
    "generate_problems",
    "note_problems",
    "parse_problem",
    "planted_mistakes",
    "read_solution",
    "with_note",
    "worked_solution",
]
