"""A scorer that remembers gives what one that does not would give, for fewer tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.worlds.digits.world import generate_problems
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace
from surefoot.models.engine.causal import IncrementalScorer, bytes_per_scored_token
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, Step, StepScores, Trace

CARD = CheckpointCard(kind="prm", label_source="test", base="tiny")
PROBLEM = Problem(text="Start with 2. Add 3.")


def random_model(base) -> RewardModel:
    model = RewardModel.initialise(base, CARD)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.fixture(params=["lab_base", "gpt2_base"])
def model(request) -> RewardModel:
    return random_model(request.getfixturevalue(request.param))


def item(*steps: str, problem: Problem = PROBLEM) -> ProblemTrace:
    """A trace of these steps, joined as they are."""
    ends = np.cumsum([len(step) for step in steps]).tolist()
    spans = [Step(start=start, end=end) for start, end in zip([0, *ends], ends, strict=False)]
    trace = Trace(problem_id=problem.id, text="".join(steps), steps=tuple(spans))
    return ProblemTrace(problem=problem, trace=trace)


def assert_as_from_scratch(model, items, records: list[StepScores]) -> None:
    fresh = Scorer(model, name="m").score_traces(items)
    for record, meant in zip(records, fresh, strict=True):
        assert record.trace_id == meant.trace_id
        assert record.scores == pytest.approx(meant.scores, abs=1e-5)


def read(trace: EncodedTrace) -> tuple[int, ...]:
    return trace.ids[: trace.positions[-1] + 1]


def new_tokens(model, items, seen: set[tuple[int, ...]]) -> int:
    """Prefixes not yet in ``seen``, which they are added to."""
    found = {ids[: end + 1] for ids in map(read, model.encode(items)) for end in range(len(ids))} - seen
    seen |= found
    return len(found)


def spent(records: list[StepScores]) -> int:
    return sum(record.usage.verifier_tokens for record in records)


@pytest.mark.parametrize("batch_tokens", [5, 16_384])
def test_a_beam_reads_new_tokens_alone_and_scores_as_from_scratch(model, batch_tokens):
    scorer = IncrementalScorer(model, name="m", batch_tokens=batch_tokens)
    assert isinstance(scorer, StepScorer)
    rng, seen = np.random.default_rng(0), set()
    beams: list[tuple[str, ...]] = [()] * 4
    for depth in range(6):
        grown = [(*beam, f"{rng.integers(90)} + {'1' * rng.integers(1, 5)} = {depth}\n") for beam in beams]
        items = [item(*beam) for beam in grown]
        records = scorer.score_traces(items)
        assert_as_from_scratch(model, items, records)
        assert spent(records) == new_tokens(model, items, seen)
        # forks: some are continued twice, some not at all, of different lengths
        beams = [grown[index] for index in rng.integers(0, 4, 4)] if depth % 2 else grown
    assert scorer.cached_tokens == len(seen)


def test_known_traces_cost_nothing_in_any_order(model):
    items = [
        item("2 + 3\n", "5 = 5\n"),
        item("2 + 3\n"),
        item("3 + 2\n", "5 = 5\n"),
        item("2 + 3\n", "5 = 6\n"),
    ]
    scorer = IncrementalScorer(model, name="m")
    first = scorer.score_traces(items)
    for order in ([3, 1, 0, 2], [1], [2, 2, 0]):
        again = scorer.score_traces([items[place] for place in order])
        assert spent(again) == 0
        for one, place in zip(again, order, strict=True):
            assert one.scores == pytest.approx(first[place].scores, abs=1e-6)


def test_new_traces_between_known_ones_of_other_problems(lab_base):
    """A known trace adds no branch; what shares its beginning still starts from there, not from before it."""
    model = random_model(lab_base)
    scorer = IncrementalScorer(model, name="m")
    chains = [f"Start with {digit}. Add 3." for digit in range(3)]
    known = [item("3 + 3 = 6\n", problem=Problem(text=chain)) for chain in chains]
    scorer.score_traces(known)
    grown = [
        trace
        for chain in chains
        for trace in (
            item("3 + 3 = 6\n", problem=Problem(text=chain)),
            item("3 + 3 = 7\n", problem=Problem(text=chain)),
            item("3 + 4 = 7\n", problem=Problem(text=chain)),
        )
    ]
    assert_as_from_scratch(model, grown, scorer.score_traces(grown))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_of_calls_scores_as_from_scratch(lab_base, seed):
    """Random trees of several problems, asked for again in parts, small caches and passes among them."""
    model, rng = random_model(lab_base), np.random.default_rng(seed)
    limits = {"max_tokens": int(rng.choice([40, 4096])), "batch_tokens": int(rng.choice([7, 16_384]))}
    scorer = IncrementalScorer(model, name="m", **limits)
    problems = generate_problems(3, seed=seed)
    for _ in range(6):
        items = [
            item(
                *(f"{rng.integers(2)} + 1 = {rng.integers(2)}\n" for _ in range(rng.integers(1, 4))),
                problem=problems[rng.integers(3)],
            )
            for _ in range(rng.integers(1, 9))
        ]
        assert_as_from_scratch(model, items, scorer.score_traces(items))


def test_a_step_that_joins_the_last_token_is_read_from_there(gpt2_base):
    """Byte-pair tokens reach over the border of prefix and step."""
    model = random_model(gpt2_base)
    text = generate_problems(20, seed=3)[0].text  # the tokenizer was trained on it
    offsets = model.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    border = next(end - 1 for start, end in offsets if end - start > 2 and start > 5)
    before, after = item(text[:border]), item(text[:border], text[border:])
    joined = [read(trace) for trace in model.encode([before, after])]
    assert joined[1][: len(joined[0])] != joined[0]
    scorer, seen = IncrementalScorer(model, name="m"), set()
    for one in (before, after, before):
        records = scorer.score_traces([one])
        assert_as_from_scratch(model, [one], records)
        assert spent(records) == new_tokens(model, [one], seen)


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [1, 40, 100])
def test_what_is_kept_is_bounded_and_forgotten_traces_are_read_again(model, max_tokens):
    scorer = IncrementalScorer(model, name="m", max_tokens=max_tokens, batch_tokens=16)
    rng = np.random.default_rng(1)
    pool = [item(*(f"{number} + {step}\n" for step in range(1 + number % 5))) for number in range(20)]
    most = 0
    for _ in range(15):
        items = [pool[index] for index in rng.integers(0, 20, 4)]
        records = scorer.score_traces(items)
        assert_as_from_scratch(model, items, records)
        assert scorer.cached_tokens <= max_tokens
        most = max(most, sum(len(ids) for ids in {read(trace) for trace in model.encode(items)}))
    held = sum(rows.nbytes for rows in scorer._cache.pool._rows.values())
    assert 0 < held <= (max_tokens + most) * bytes_per_scored_token(model.trunk)


def test_the_least_recently_used_is_forgotten_first(lab_base):
    model = random_model(lab_base)
    others = [item("9 + " * 12, problem=Problem(text=f"Start with {number}. Add 1.")) for number in range(3)]
    sizes = [len(read(trace)) for trace in model.encode(others)]
    scorer = IncrementalScorer(model, name="m", max_tokens=2 * max(sizes))
    for one in (others[0], others[1], others[0], others[2]):  # the second is the oldest when room ends
        scorer.score_traces([one])
    assert spent(scorer.score_traces([others[0]])) == 0
    assert spent(scorer.score_traces([others[1]])) > 0


def test_more_than_fits_in_one_call_is_scored_all_the_same(model):
    items = [item(*(f"{a} + {b} = {c}\n" for c in range(3))) for a in range(4) for b in range(4)]
    scorer = IncrementalScorer(model, name="m", max_tokens=30, batch_tokens=20)
    for _ in range(2):
        assert_as_from_scratch(model, items, scorer.score_traces(items))
        assert scorer.cached_tokens <= 30


def test_to_clear_is_to_read_again(model):
    scorer = IncrementalScorer(model, name="m")
    (first,) = scorer.score_traces([item("2 + 3\n", "5 = 5\n")])
    torch.nn.init.normal_(model.trunk.get_input_embeddings().weight)
    scorer.clear()
    assert scorer.cached_tokens == 0
    again = scorer.score_traces([item("2 + 3\n", "5 = 5\n")])
    assert_as_from_scratch(model, [item("2 + 3\n", "5 = 5\n")], again)
    assert spent(again) == first.usage.verifier_tokens


class Marked:
    """A step model that puts a marker token after each step and closes the turn, as chat families do."""

    marker, close = 3, (1, 2)

    def __init__(self, model: RewardModel) -> None:
        self._model = model
        self.trunk, self.tokenizer, self.card, self.read = (
            model.trunk,
            model.tokenizer,
            model.card,
            model.read,
        )

    def encode(self, items) -> list[EncodedTrace]:
        encoded = []
        for one in items:
            ids = list(self.tokenizer(one.problem.text + "\n")["input_ids"])
            positions = []
            for number in range(len(one.trace.steps)):
                ids += [*self.tokenizer(one.trace.step_text(number))["input_ids"], self.marker]
                positions.append(len(ids) - 1)
            encoded.append(EncodedTrace(ids=(*ids, *self.close), positions=tuple(positions)))
        return encoded


def test_markers_after_each_step_stay(model):
    marked = Marked(model)
    scorer, seen = IncrementalScorer(marked, name="m"), set()
    steps = [f"{number} + 1 = {number + 1}\n" for number in range(5)]
    for upto in range(1, 6):
        items = [item(*steps[:upto]), item(*steps[: upto - 1], "Now 2\n")]
        records = scorer.score_traces(items)
        assert_as_from_scratch(marked, items, records)
        assert spent(records) == new_tokens(marked, items, seen)


def test_a_trunk_that_cannot_read_trees_is_scored_and_nothing_is_kept(model):
    for module in model.trunk.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    model.trunk.config.is_causal = False
    scorer = IncrementalScorer(model, name="m")
    items = [item("2 + 3\n", "5 = 5\n"), item("2 + 3\n")]
    for _ in range(2):
        records = scorer.score_traces(items)
        assert_as_from_scratch(model, items, records)
        assert spent(records) > 0
    assert scorer.cached_tokens == 0


def test_a_failing_pass_leaves_nothing_half_done(model):
    scorer = IncrementalScorer(model, name="m")
    scorer.score_traces([item("2 + 3\n")])
    kept = scorer.cached_tokens
    broken = model.trunk.register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(RuntimeError("no memory"))
    )
    with pytest.raises(RuntimeError, match="no memory"):
        scorer.score_traces([item("2 + 3\n", "5 = 5\n")])
    broken.remove()
    assert scorer.cached_tokens == kept
    items = [item("2 + 3\n", "5 = 5\n")]
    assert_as_from_scratch(model, items, scorer.score_traces(items))
