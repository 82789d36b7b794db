"""Rewards of solutions that are known: what a round is worth, number by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from surefoot.answers import AnswerChecker, Grader
from surefoot.lab.world import (
    ArithmeticChain,
    Difficulty,
    ExactLabeller,
    apply,
    generate_problems,
    parse_problem,
    worked_solution,
)
from surefoot.models.engine.causal import load_causal
from surefoot.models.kinds.label_scorer import LabelScorer
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.protocols import SampleRequest
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import Summed
from surefoot.rl.log import read_samples
from surefoot.rl.loop import train_policy
from surefoot.rl.server_weights import Published
from surefoot.rl.task import Server, Task
from surefoot.segment import Line


def scripted(request: SampleRequest, sample: int) -> str:
    """A right solution, one that ends in a wrong answer, and one whose first line is wrong by one."""
    chain = parse_problem(str(request.prompt).strip())
    lines = worked_solution(chain).splitlines(keepends=True)
    if sample == 1:
        lines[-1] = f"Answer: {(chain.answer + 1) % 10}\n"
    if sample == 2:
        symbol, digit = chain.operations[0]
        value = (apply(chain.start, symbol, digit) + 1) % 10
        rest = ArithmeticChain(start=value, operations=chain.operations[1:])
        lines = [f"{chain.start} {symbol} {digit} = {value}\n", worked_solution(rest)]
    return "".join(lines)


class Nowhere:
    """Has no use for new weights."""

    def publish(self, _model: object, _tokenizer: object, directory: Path) -> Published:
        return Published(path=directory, gap=0.0, seconds=0.0)


def test_a_right_step_is_worth_one_and_a_wrong_one_nothing(lab_base: Path, tmp_path: Path) -> None:
    problems = generate_problems(6, seed=1, difficulty=Difficulty(min_operations=1, max_operations=2))
    model, tokenizer = load_causal(lab_base, dtype="float32", trust_remote_code=False)
    config = RLConfig(
        credit=Summed(), updates=1, problems=2, samples=3, max_tokens=40, keep_samples=6, evaluate_every=9
    )
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=problems[:4],
            held_out=problems[4:],
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            scorer=LabelScorer(ExactLabeller(after_error="step"), name="checker"),
            aggregation="mean",
        )
        server = Server(policy=ScriptedPolicy(scripted), publisher=Nowhere())
        log = train_policy(model, tokenizer, task, config, tmp_path, server=server)
    rows = read_samples(tmp_path / "samples" / "000001.jsonl")  # both first samples, second, third
    counts = [len(parse_problem(row.problem.text).operations) + 1 for row in rows]
    assert counts[:2] * 3 == counts
    wrong = [None, None, -1, -1, 0, 0]  # the step of each that is
    expected = [[1.0] * count for count in counts]
    for scores, at in zip(expected, wrong, strict=True):
        if at is not None:
            scores[at] = 0.0
    assert [list(row.scores) for row in rows] == expected
    [row] = log.updates
    assert row.reward == pytest.approx(np.mean([sum(scores) for scores in expected]))
    assert row.proxy == pytest.approx(np.mean([np.mean(scores) for scores in expected]))
    assert row.outcome == pytest.approx(1 / 3)
