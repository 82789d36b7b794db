"""Rewards of solutions that are known: what a round is worth, number by number."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from rollouts import TellsTokens

from benchmarks.worlds.digits.world import (
    ArithmeticChain,
    Difficulty,
    ExactLabeller,
    apply,
    generate_problems,
    parse_problem,
    worked_solution,
)
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import read_records
from surefoot.models.engine.causal import load_causal
from surefoot.models.kinds.derived import LabelScorer
from surefoot.policies import IN_PROCESS
from surefoot.policies.prompts import encode_prompt
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import SampleRequest
from surefoot.records import StepScores
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import Summed
from surefoot.rl.learners import Actor
from surefoot.rl.log import RLLog, SampleRow, UpdateRow
from surefoot.rl.loop import Server, train_policy
from surefoot.rl.report import findings
from surefoot.rl.rollouts import Task
from surefoot.rl.sample import Sample
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


class LikesLength:
    """Scores a step by its length."""

    def score_traces(self, items):
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="length",
                scores=tuple(
                    len(item.trace.step_text(step)) % 7 / 7 for step in range(len(item.trace.steps))
                ),
            )
            for item in items
        ]


class Nowhere:
    """Has no use for new weights."""

    def publish(self, *_: object) -> float:
        return 0.0


def test_a_right_step_is_worth_one_and_a_wrong_one_nothing(lab_base: Path, tmp_path: Path) -> None:
    problems = generate_problems(6, seed=1, difficulty=Difficulty(min_operations=1, max_operations=2))
    model, tokenizer = load_causal(lab_base)
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
        server = Server(policy=TellsTokens(ScriptedPolicy(scripted), tokenizer), publisher=Nowhere())
        log = train_policy(model, tokenizer, task, config, tmp_path, server=server)
    rows = list(
        read_records(tmp_path / "samples" / "000001.jsonl", SampleRow)
    )  # both first samples, second, third
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


@dataclass
class Drawn:
    """A server with the first policy's weights that says it drew tokens with 1/``ratio`` of their chance."""

    policy: TransformersPolicy
    actor: Actor
    ratio: float
    silent: bool = False
    name: str = "drawn"

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        results = await self.policy.sample(requests)
        return [
            replace(
                result, completions=tuple(self._with_logprobs(one, request) for one in result.completions)
            )
            if request.logprobs and not self.silent
            else result
            for request, result in zip(requests, results, strict=True)
        ]

    def _with_logprobs(self, completion, request):
        rollout = Sample(
            tokens=len(completion.token_ids),
            prompt_ids=encode_prompt(self.policy.tokenizer, request.prompt, request.prefix),
            ids=completion.token_ids,
            ends=(0,),
        )
        [logprobs] = self.actor.logprobs([rollout], microbatch_tokens=999)
        return replace(completion, logprobs=tuple((logprobs - np.log(self.ratio)).tolist()))


@pytest.mark.parametrize("steps", [{}, {"epochs": 2, "minibatches": 2}])
@pytest.mark.parametrize(("ratio", "gap"), [(1.0, 0.0), (4.0, np.log(4)), (0.5, np.log(2))])
def test_the_gap_between_the_server_s_and_the_trainer_s_probabilities_is_logged(
    lab_base: Path, tmp_path: Path, ratio: float, gap: float, steps: dict[str, int]
) -> None:
    row = first_update(lab_base, tmp_path, ratio=ratio, **steps)
    assert row.gradient_norm > 0
    assert row.server_gap == pytest.approx(gap, abs=1e-4)
    [log] = [RLLog.model_validate_json(json.dumps(json.loads((tmp_path / "rl.json").read_text())["log"]))]
    [sentence] = [text for text in findings(log) if "log-probabilities" in text]
    assert f"by {row.server_gap:.3g} nats per token on average" in sentence
    curves = [json.loads(line) for line in (tmp_path / "curves.jsonl").read_text().splitlines()]
    assert row.server_gap in [curve.get("server_gap") for curve in curves]


@pytest.mark.parametrize("more", [{"silent": True}, {"temperature": 0.7}])
def test_a_gap_that_cannot_be_measured_is_unknown(
    lab_base: Path, tmp_path: Path, more: dict[str, object]
) -> None:
    row = first_update(lab_base, tmp_path, ratio=4.0, **more)
    assert row.server_gap is None
    assert row.gradient_norm > 0


def first_update(
    base: Path, directory: Path, *, ratio: float, silent: bool = False, **more: object
) -> UpdateRow:
    """One update on what a server samples that says ``1 / ratio`` of each token's probability."""
    model, tokenizer = load_causal(base)
    frozen, _ = load_causal(base)
    policy = TransformersPolicy(frozen, tokenizer, name="frozen")
    config = RLConfig(
        credit=Summed(), updates=1, problems=2, samples=3, max_tokens=12, evaluate_every=9, **more
    )
    with AnswerChecker("exact") as checker:
        problems = generate_problems(6, seed=1, difficulty=Difficulty(min_operations=1, max_operations=2))
        task = Task(
            problems=problems[:4],
            held_out=problems[4:],
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
            scorer=LikesLength(),
        )
        drawn = Drawn(policy, Actor(frozen), ratio, silent=silent)
        server = Server(policy=drawn, publisher=Nowhere())
        [row] = train_policy(model, tokenizer, task, config, directory, server=server).updates
    return row
