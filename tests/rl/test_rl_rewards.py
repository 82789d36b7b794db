"""Rewards of solutions that are known: what a round is worth, number by number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.io import read_records
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
from surefoot.policies.prompts import encode_prompt
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import SampleRequest
from surefoot.records import Problem, StepScores, Trace
from surefoot.rl.actor import Actor
from surefoot.rl.config import Objective, RLConfig
from surefoot.rl.credit import Summed
from surefoot.rl.log import SampleRow, UpdateRow
from surefoot.rl.loop import train_policy
from surefoot.rl.rollouts import Rollout, Server, Task
from surefoot.rl.server_weights import Published
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

    def publish(self, _model: object, _tokenizer: object, directory: Path) -> Published:
        return Published(path=directory, gap=0.0, seconds=0.0)


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
        server = Server(policy=ScriptedPolicy(scripted), publisher=Nowhere())
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
        rollout = Rollout(
            problem=Problem(text="x"),
            trace=Trace(problem_id="x", text="x"),
            prompt_ids=encode_prompt(self.policy.tokenizer, request.prompt, request.prefix),
            ids=completion.token_ids,
            ends=(0,),
        )
        [logprobs] = self.actor.logprobs([rollout], microbatch_tokens=999)
        return replace(completion, logprobs=tuple((logprobs - np.log(self.ratio)).tolist()))


@pytest.mark.parametrize(("ratio", "cap", "factor"), [(1.0, 2.0, 1.0), (4.0, 2.0, 2.0), (0.5, 2.0, 0.5)])
def test_rollouts_of_a_server_are_weighted_by_its_own_probabilities(
    lab_base: Path, tmp_path: Path, ratio: float, cap: float, factor: float
) -> None:
    def first_update(name: str, **more: object) -> UpdateRow:
        model, tokenizer = load_causal(lab_base)
        frozen, _ = load_causal(lab_base)
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
            server = Server(policy=Drawn(policy, Actor(frozen), ratio), publisher=Nowhere())
            return train_policy(model, tokenizer, task, config, tmp_path / name, server=server).updates[0]

    plain = first_update("plain")
    weighted = first_update("weighted", objective=Objective(sampler_cap=cap))
    assert plain.gradient_norm > 0
    assert weighted.gradient_norm == pytest.approx(factor * plain.gradient_norm, rel=1e-3)


def test_a_server_without_log_probabilities_is_refused(lab_base: Path, tmp_path: Path) -> None:
    model, tokenizer = load_causal(lab_base)
    problems = generate_problems(6, seed=1, difficulty=Difficulty(min_operations=1, max_operations=2))
    config = RLConfig(updates=1, problems=2, samples=2, max_tokens=8, objective=Objective(sampler_cap=2.0))
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=problems[:4],
            held_out=problems[4:],
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
        )
        with pytest.raises(TrainingError, match="corrects for a server that samples, but there is none"):
            train_policy(model, tokenizer, task, config, tmp_path / "a")
        silent = Drawn(TransformersPolicy(model, tokenizer, name="p"), Actor(model), 1.0, silent=True)
        server = Server(policy=silent, publisher=Nowhere())
        with pytest.raises(TrainingError, match="it gave none"):
            train_policy(model, tokenizer, task, config, tmp_path / "b", server=server)


def test_a_round_is_filled_with_problems_that_teach_something(lab_base: Path, tmp_path: Path) -> None:
    problems = generate_problems(8, seed=1, difficulty=Difficulty(min_operations=1, max_operations=2))
    lucky = {problem.text for problem in problems[:3]}

    def some(request: SampleRequest, sample: int) -> str:
        """Three problems are solved every second time, the others never."""
        chain = parse_problem(str(request.prompt).strip())
        right = sample % 2 == 0 and any(text in str(request.prompt) for text in lucky)
        return worked_solution(chain) if right else "Answer: none\n"

    model, tokenizer = load_causal(lab_base)
    config = RLConfig.model_validate(
        {"credit": {"rule": "dapo"}, "updates": 1, "problems": 2, "samples": 2, "max_tokens": 40}
        | {"keep_samples": 99, "evaluate_every": 9, "seed": 3}
    )
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=problems[:7],
            held_out=problems[7:],
            segmenter=Line(),
            grader=Grader(checker=checker, styles=("phrase",)),
        )
        server = Server(policy=ScriptedPolicy(some), publisher=Nowhere())
        [row] = train_policy(model, tokenizer, task, config, tmp_path, server=server).updates
    learned = list(read_records(tmp_path / "samples" / "000001.jsonl", SampleRow))
    assert len(learned) == 4
    assert {one.problem.text for one in learned} <= lucky
    assert row.samples == 4 + row.filtered > 4, "what was drawn and dropped is counted"
    assert row.outcome == pytest.approx(2 / row.samples)
