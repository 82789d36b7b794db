"""Train the lab's policy for a few rounds on step rewards of the exact checker, and on outcomes.

Far too few rounds to learn much: the point is what a run is made of. `surefoot rl` does the same from the
command line, with a report.
"""

from __future__ import annotations

from pathlib import Path

from surefoot.answers import AnswerChecker, Grader
from surefoot.lab import POLICY, LabVerifier, generate_problems
from surefoot.labelling import VerifierLabeller
from surefoot.models import LabelScorer, load_causal
from surefoot.rl import Credit, MinForm, Outcome, RLConfig, Task, train_policy
from surefoot.segment import Line


def train(task: Task, credit: Credit, directory: Path) -> None:
    """One short run."""
    model, tokenizer = load_causal(POLICY)
    config = RLConfig(credit=credit, updates=2, problems=4, samples=4, warmup=2)
    log = train_policy(model, tokenizer, task, config, directory)
    for row in log.updates:
        print(
            f"{credit.rule}, round {row.update}: {row.outcome:.0%} of the rollouts right, "
            f"advantages spread by {row.advantage_std:.2f}, entropy {row.entropy or 0:.3f} nats a token"
        )
    before, after = log.evaluations[0], log.evaluations[-1]
    print(f"{credit.rule}: held-out accuracy {before.accuracy.value:.0%}, then {after.accuracy.value:.0%}")


def main() -> None:
    """Both, from the same start, on the same problems."""
    held_out = generate_problems(10, seed=7)
    truth = VerifierLabeller(verifiers=(LabVerifier(),))
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=generate_problems(40, seed=0, exclude=held_out),
            held_out=held_out,
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            scorer=LabelScorer(truth, name="checker"),
            gold=truth,
        )
        train(task, MinForm(), Path("runs/min-form"))
        train(task, Outcome(), Path("runs/outcome"))


if __name__ == "__main__":
    main()
