"""Order, shares and layout of what is trained on."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surefoot.errors import TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.training.batches import cut_microbatches, lay_out, sharing_rows, with_layout
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import Example


def example(name: int, length: int, target: float = 1.0) -> Example:
    return Example(
        trace_id=str(name),
        ids=tuple(range(1, length + 1)),
        positions=tuple(range(1, length, 3)) or (0,),
        targets=(target,) * max(1, len(range(1, length, 3))),
    )


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=30),
    world_size=st.integers(1, 4),
    steps=st.integers(1, 3),
    tokens=st.none() | st.integers(1, 200),
    layout=st.sampled_from(["padded", "packed"]),
)
def test_the_microbatches_of_a_batch_are_its_traces_once(lengths, world_size, steps, tokens, layout):
    batch = [example(number, length) for number, length in enumerate(lengths)]
    config = TrainingConfig(gradient_accumulation_steps=steps, microbatch_tokens=tokens, layout=layout)
    microbatches = cut_microbatches(batch, config, world_size=world_size)
    counted = Counter(item.trace_id for microbatch in microbatches for item in microbatch)
    assert counted == Counter(item.trace_id for item in batch)
    for microbatch in microbatches:
        assert microbatch
        sizes = [len(item.ids) for item in microbatch]
        size = sum(sizes) if layout == "packed" else max(sizes) * len(sizes)
        assert tokens is None or size <= tokens or len(microbatch) == 1
    if tokens is None:
        assert len(microbatches) == min(world_size * steps, len(batch))


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
def test_packed_traces_do_not_see_each_other(base, request, monkeypatch):
    card = CheckpointCard(kind="prm", label_source="test", base="tiny")
    model = RewardModel.initialise(request.getfixturevalue(base), card).eval()
    torch.nn.init.normal_(model.head.weight)
    parts = [example(number, length) for number, length in enumerate((7, 3, 12, 7))]
    outputs = []
    for layout, groups in (("packed", [parts]), ("padded", [parts]), ("padded", [[part] for part in parts])):
        made = []
        for group in groups:
            with sharing_rows(model.trunk, layout):
                given = lay_out(group, layout, torch.device("cpu"), trunk=model.trunk)
                made.append(model(given.ids_bt, given.mask_bt, given.rows_s, given.at_s, **given.shared_rows))
        outputs.append(torch.cat(made))
    for found in outputs[:2]:
        torch.testing.assert_close(found, outputs[2], atol=2e-5, rtol=1e-4)
    assert with_layout(TrainingConfig(), model.trunk).layout == "packed"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert with_layout(TrainingConfig(), model.trunk).layout == "padded"


def test_a_trunk_that_mixes_packed_traces_is_found_out(lab_base):
    card = CheckpointCard(kind="prm", label_source="test", base="tiny")
    model = RewardModel.initialise(lab_base, card)

    class Blind(torch.nn.Module):
        """Takes no notice of positions, so that packed traces run on."""

        def __init__(self, trunk) -> None:
            super().__init__()
            self.inner, self.config, self.device, self.dtype = trunk, trunk.config, trunk.device, trunk.dtype
            self.set_attn_implementation = lambda _: None

        def forward(self, input_ids, use_cache, position_ids=None, **_):
            return self.inner(input_ids=input_ids, use_cache=use_cache)

    for layout in ("packed", "tree"):
        with pytest.raises(TrainingError, match=f"layout '{layout}'"):
            with_layout(TrainingConfig(layout=layout), Blind(model.trunk))
