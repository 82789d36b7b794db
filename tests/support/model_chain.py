"""A small model with a history: two imports, merged shards, labels by rule, training, and an audit."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import good


def rows(path: Path, first: int, count: int = 6) -> None:
    """Questions with worked solutions, of which every third has a wrong equation."""
    path.write_text(
        "".join(
            json.dumps(
                {
                    "question": f"What is {n} + 2?",
                    "answer": str(n + 2),
                    "solution": f"{n} + 2 = {n + 2 + (n % 3 == 0)}\n\nThe answer is {n + 2}.",
                }
            )
            + "\n"
            for n in range(first, first + count)
        )
    )


def make_chain(base: Path) -> None:
    """Make ``data*``, ``traces.jsonl``, ``l.jsonl`` and the checkpoint ``prm`` in the working directory."""
    for number, licence in enumerate(("MIT", "CC-BY-4.0")):
        rows(Path(f"part{number}.jsonl"), 20 * number, 20)
        good("import", f"part{number}.jsonl", "--licence", licence, "--out", f"data{number}")
    good("segment", "data*/traces.jsonl", "--segment", "line", "--out", "traces.jsonl")
    problems = ("--problems", "data*/problems.jsonl")
    good("label", "traces.jsonl", "verify:rules=equations", *problems, "--out", "l.jsonl")
    training = ("--epochs", "1", "--max-length", "100", "--validation", "0.4", "--base", base, "--out", "prm")
    good("train", "prm", "traces.jsonl", *problems, "--labels", "l.jsonl", *training)


def make_audit() -> None:
    """Score the traces, and audit the scores as ``audit``."""
    problems = ("--problems", "data*/problems.jsonl")
    good("score", "traces.jsonl", *problems, "-m", "prm", "--out", "scores.jsonl")
    about = (*problems, "--traces", "traces.jsonl", "--labels", "l.jsonl", "--draws", "50")
    good("audit", "--test=outcome", "prm=scores.jsonl", *about, "--out", "audit")
