"""Scores of many traces at once against the plain forward of one trace at a time."""

from __future__ import annotations

import pytest
import torch

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace
from surefoot.models.engine.packing import tree_limit
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

CARD = CheckpointCard(kind="prm", label_source="test", base="tiny")
PROBLEMS = {"Start with 2. Add 3.": ["3 * 4", "2 + 3"], "Start with 9. Subtract 2.": ["9 - 2 = 7", "2"]}


def random_model(base) -> RewardModel:
    model = RewardModel.initialise(base, CARD)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.fixture(params=["lab_base", "gpt2_base"])
def model(request) -> RewardModel:
    return random_model(request.getfixturevalue(request.param))


@pytest.fixture
def items() -> list[ProblemTrace]:
    """Solutions of two problems that branch at every line, in mixed order."""
    made = []
    for text, starts in PROBLEMS.items():
        problem = Problem(text=text)
        for number in range(8):
            lines = [starts[number % 2], f"1 + {number // 2 % 2}", f"2 * {number // 4}" + "1" * number]
            trace = Trace(problem_id=problem.id, text="\n".join(lines[: 3 - (number == 5)]), sample=number)
            made.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return made[::2] + made[1::2]


def alone(model: RewardModel, items: list[ProblemTrace]) -> list[list[float]]:
    """One plain forward a trace."""
    rows = []
    for trace in model.encode(items):
        with torch.no_grad():
            hidden = model.trunk(input_ids=torch.tensor([trace.ids])).last_hidden_state[0]
            rows.append(model.read(hidden[list(trace.positions)]).tolist())
    return rows


def distinct(traces: list[EncodedTrace]) -> int:
    """Nodes of the tree of all tokens up to the last step of each trace."""
    return len({trace.ids[: end + 1] for trace in traces for end in range((trace.positions[-1] or 0) + 1)})


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [1, 7, 50, 16_384])
@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_equal_those_of_one_trace_at_a_time(model, items, side, batch_tokens):
    model.tokenizer.padding_side = side
    records = Scorer(model, name="m", batch_tokens=batch_tokens).score_traces(items)
    for record, expected in zip(records, alone(model, items), strict=True):
        assert record.scores == pytest.approx(expected, abs=1e-5)
    assert len({score for record in records for score in record.scores}) > 20
    assert sum(record.usage.verifier_tokens for record in records) == distinct(model.encode(items))


def test_the_tokens_counted_are_those_that_went_through_the_trunk(model, items):
    seen: list[int] = []
    scorer = Scorer(model, name="m", batch_tokens=64)
    scorer.score_traces(items[:1])  # the first call tries out what the trunk can do
    hook = model.trunk.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    records = scorer.score_traces(items)
    hook.remove()
    assert len(seen) > 1
    assert max(seen) <= 64
    assert sum(seen) == sum(record.usage.verifier_tokens for record in records)


def test_a_trunk_that_looks_ahead_is_padded_and_reads_whole_traces(model, items):
    for module in model.trunk.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    model.trunk.config.is_causal = False
    assert tree_limit(model.trunk) == 0
    records = Scorer(model, name="m", batch_tokens=200).score_traces(items)
    for record, expected in zip(records, alone(model, items), strict=True):
        assert record.scores == pytest.approx(expected, abs=1e-5)
    lengths = [len(trace.ids) for trace in set(model.encode(items))]
    assert sum(record.usage.verifier_tokens for record in records) == sum(lengths)


def test_half_precision_is_near(model, items):
    expected = alone(model, items)
    model.trunk.to(torch.bfloat16)
    records = Scorer(model, name="m").score_traces(items)
    gaps = [
        abs(score - meant)
        for record, row in zip(records, expected, strict=True)
        for score, meant in zip(record.scores, row, strict=True)
    ]
    assert sum(gaps) / len(gaps) < 0.02
    assert sum(record.usage.verifier_tokens for record in records) == distinct(model.encode(items))


def test_nothing_to_score(model):
    assert Scorer(model, name="m").score_traces([]) == []
