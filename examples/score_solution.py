"""Train a small process reward model and score a pasted solution with it, step by step.

    python score_solution.py             # trains for a few updates on exact labels, writes ./prm, scores
    python score_solution.py CHECKPOINT  # scores with a checkpoint of your own of the lab's world

A few updates are enough to see the parts work. They are not enough for a good reward model.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from surefoot import load_prm
from surefoot.answers import AnswerChecker, Grader
from surefoot.lab import TRUNK, ExactLabeller, NoisySolver, generate_problems
from surefoot.models import CheckpointCard, Encoding, RewardModel
from surefoot.policies import sample_traces
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.segment import Line
from surefoot.training import StepTargets, TrainingConfig, build_examples, train

PROBLEM = "Start with 7. Add 3. Multiply by 4. Subtract 9."
SOLUTION = "7 + 3 = 0\n0 * 4 = 2\n2 - 9 = 3\nAnswer: 3\n"  # the second line is wrong: 0 * 4 ends in 0


def labelled_traces() -> list[LabelledTrace]:
    """Traces of a scripted solver that errs in one line of seven, with labels from the exact checker."""
    problems = generate_problems(48, seed=0)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        solver = NoisySolver(error_rate=0.15)
        sampled = asyncio.run(sample_traces(solver, problems, n=1, seed=0, segmenter=Line(), grader=grader))
    items = [ProblemTrace(problem=p, trace=traces[0]) for p, traces in zip(problems, sampled, strict=True)]
    labels = asyncio.run(ExactLabeller(after_error="wrong").label(items))
    return [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace))
        for item, of_trace in zip(items, labels, strict=True)
    ]


def train_prm(directory: Path) -> None:
    """Write a checkpoint to ``directory``."""
    card = CheckpointCard(
        kind="prm",
        encoding=Encoding(max_length=256),
        score_means="correctness",
        label_source="lab-checker",
        base="surefoot-lab-trunk",
    )
    model = RewardModel.initialise(TRUNK, card)
    data = build_examples(model.tokenizer, model.card.encoding, labelled_traces(), StepTargets())
    log = train(model, data.examples, TrainingConfig(epochs=2), directory)
    print(f"{len(log.losses)} updates, loss {log.losses[0]:.3f} at first, {log.losses[-1]:.3f} at last")


def main() -> None:
    """Score the solution with the given checkpoint, or with one trained now."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("prm")
    if len(sys.argv) == 1:
        train_prm(directory)
    prm = load_prm(directory)
    [scores] = prm.score(PROBLEM, [SOLUTION])
    for line, score in zip(SOLUTION.splitlines(), scores.scores, strict=True):
        print(f"{'  n/a' if score is None else f'{score:.3f}'}  {line}")
    print(f"{prm.card.aggregation} of the steps: {prm.aggregate(scores):.3f}")


if __name__ == "__main__":
    main()
