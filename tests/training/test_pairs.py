"""Step pairs become pairs of traces that part at their last step."""

from __future__ import annotations

import pytest
import torch

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.records import Problem, StepPair
from surefoot.segment import Line
from surefoot.training.classifier import train
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import build_pairs

PROBLEM = Problem(text="Start with 7. Add 3. Add 1.", answer="1")


def pair(**changes) -> StepPair:
    fields = {
        "problem_id": PROBLEM.id,
        "prefix": "7 + 3 = 0\n",
        "better": "0 + 1 = 1\n",
        "worse": "0 + 1 = 2\n",
        "better_value": 0.8,
        "worse_value": 0.4,
        "source": "test",
    }
    return StepPair(**(fields | changes))


def test_a_pair_is_read_at_the_rival_steps():
    tokenizer = build_tokenizer()
    made = build_pairs(tokenizer, Encoding(), [PROBLEM], [pair(), pair(prefix="", problem_id="unknown")])
    [one] = made.examples
    assert one.targets == (pytest.approx(0.7),)
    assert one.ids[:-2] == one.worse.ids[:-2]
    assert one.positions == one.worse.positions
    assert tokenizer.decode(one.ids[one.positions[0]]) == "1"
    assert tokenizer.decode(one.worse.ids[one.worse.positions[0]]) == "2"
    assert made.dropped == {"pairs without problem": 1}
    assert made.first == {"pairs without problem": "unknown"}
    [hard] = build_pairs(tokenizer, Encoding(), [PROBLEM], [pair()], hard=True).examples
    assert hard.targets == (1.0,)


def test_a_marker_stands_after_the_steps_of_the_prefix_too():
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra_0>"]})
    marked = Encoding(marker="<extra_0>")
    with pytest.raises(TrainingError, match="segmenter"):
        build_pairs(tokenizer, marked, [PROBLEM], [pair()])
    [one] = build_pairs(tokenizer, marked, [PROBLEM], [pair()], segmenter=Line()).examples
    text = tokenizer.decode(one.ids).replace(" ", "")
    assert text.endswith("7+3=0\n<extra_0>0+1=1\n<extra_0>")
    assert one.positions == (len(one.ids) - 1,)


def test_what_is_too_long_is_counted():
    with pytest.raises(TrainingError, match="1 pairs beyond the context"):
        build_pairs(build_tokenizer(), Encoding(max_length=8), [PROBLEM], [pair()])


def test_a_preference_is_learnt(lab_base, tmp_path):
    card = CheckpointCard(kind="prm", label_source="test", base="tiny")
    model = RewardModel.initialise(lab_base, card)
    rows = [
        pair(better=f"0 + {digit} = {digit}\n", worse=f"0 + {digit} = {(digit + 3) % 10}\n", worse_value=0.0)
        for digit in range(10)
    ]
    data = build_pairs(model.tokenizer, card.encoding, [PROBLEM], rows, hard=True)
    config = TrainingConfig(loss="pairwise", epochs=15, batch_size=5, learning_rate=5e-3, head_epochs=0)
    log = train(model, data.examples, config, tmp_path)
    assert log.losses[0] == pytest.approx(0.693147, rel=1e-4), "a zero head prefers neither"
    assert log.losses[-1] < 0.3
    assert log.tokens == 15 * sum(len(part.ids) for one in data.examples for part in one.parts)
    assert torch.isfinite(model.head.weight).all()
