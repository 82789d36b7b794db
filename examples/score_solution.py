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
from surefoot.lab import POLICY, LabVerifier, generate_problems
from surefoot.labelling import VerifierLabeller
from surefoot.models import CheckpointCard, Encoding, RewardModel
from surefoot.policies import load_policy, sample_traces
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.segment import Line
from surefoot.training import StepTargets, TrainingConfig, build_examples, train

PROBLEM = (
    "Ann counts 34 cards. Ann has 17 fewer than Ben. Cara has 2 times as many as Ben. "
    "How many cards does Cara have?"
)
SOLUTION = """\
Ann has 17 fewer than Ben. Ben has Ann's 34 - 17 = 17.
Cara has 2 times as many as Ben. Cara has Ben's 17 * 2 = 34.
Answer: 34.
"""  # the first line is wrong: Ben has 17 more


def labelled_traces() -> list[LabelledTrace]:
    """Solutions of the lab's policy, half of them wrong, with labels from the exact checker."""
    problems = generate_problems(48, seed=0)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        policy = load_policy(POLICY)
        sampled = asyncio.run(sample_traces(policy, problems, n=1, seed=0, segmenter=Line(), grader=grader))
    items = [ProblemTrace(problem=p, trace=traces[0]) for p, traces in zip(problems, sampled, strict=True)]
    labels = asyncio.run(VerifierLabeller(verifiers=(LabVerifier(),)).label(items))
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
        base="surefoot-lab-policy",
    )
    model = RewardModel.initialise(POLICY, card)
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
