"""The layout ``tree``: losses and gradients of rows, from trees that read each distinct token once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from surefoot.errors import TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.engine import tree_attention
from surefoot.models.engine.causal import load_causal
from surefoot.models.engine.tree_attention import key_intervals
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.models.lora import Lora
from surefoot.training.batches import (
    batch_order,
    cut_microbatches,
    lay_out,
    tokens_read,
    tree_branches,
    with_layout,
)
from surefoot.training.classifier import train
from surefoot.training.config import ImplicitConfig, SFTConfig, TrainingConfig
from surefoot.training.examples import Example
from surefoot.training.implicit import train_implicit
from surefoot.training.sft import fit_tokens

WHOLE = {"epochs": 1, "batch_size": 64, "max_grad_norm": 1e9, "weight_decay": 0.0}
"""One update whose gradient is not clipped."""


def forest(
    *, targets=(0.0, 1.0), problems: int = 3, pairs: bool = False, every: bool = False
) -> list[Example]:
    """Solutions of a few problems: alternatives at each step, one solution twice, one inside another."""
    rng = np.random.default_rng(5)
    made: list[Example] = []
    for problem in range(problems):
        ids = (1, *rng.integers(4, 19, 6).tolist())
        ends: list[int] = []
        for _ in range(3):
            for length in (4, 1, 6):
                other = (*ids, *rng.integers(4, 19, length).tolist())
                places = tuple(range(1, len(other))) if every else (*ends, len(other) - 1)
                count = 1 if pairs else len(places)
                values = tuple(rng.choice(targets, count).tolist())
                name = f"{problem}/{len(made)}"
                made.append(Example(trace_id=name, ids=other, positions=places, targets=values))
            ids = made[-1].ids
            ends.append(len(ids) - 1)
        made.append(made[-1])
        made.append(Example(trace_id=f"{problem}/inside", ids=ids[:9], positions=(8,), targets=(targets[0],)))
    if not pairs:
        return made
    last = [Example(**{**vars(one), "positions": one.positions[-1:]}) for one in made]
    return [Example(**{**vars(one), "targets": (0.75,), "worse": other}) for one, other in pairwise(last)]


def reward_model(base, **card) -> RewardModel:
    torch.manual_seed(3)
    model = RewardModel.initialise(base, CheckpointCard(kind="prm", label_source="test", base="tiny", **card))
    torch.nn.init.normal_(model.head.weight)
    model.trunk.double()
    for module in model.modules():  # dropout would differ from one layout to another
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def gradients(model: torch.nn.Module, fit) -> tuple[float, torch.Tensor, int]:
    """Loss of the one update, its gradient, and the tokens read."""
    found: list[torch.Tensor] = []

    def keep(*_) -> None:
        found.append(torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None]))

    log = fit(keep)
    [gradient] = found
    assert gradient.norm() > 0
    return log.losses[0], gradient, log.read_tokens


def require_equal(rows, tree) -> None:
    assert tree[0] == pytest.approx(rows[0], rel=1e-6)
    assert float((tree[1] - rows[1]).norm() / rows[1].norm()) < 1e-6
    assert tree[2] < 0.6 * rows[2], "shared prefixes were read again"


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
@pytest.mark.parametrize(
    ("card", "settings", "data"),
    [
        ({}, {"loss": "bce"}, {"targets": (0.0, 0.3, 1.0)}),
        ({"head": "linear"}, {"loss": "mse"}, {"targets": (0.0, 0.3, 1.0)}),
        ({"head": "classes"}, {"loss": "classes"}, {"targets": (0.0, 0.5, 1.0)}),
        ({}, {"loss": "pairwise"}, {"pairs": True}),
        ({}, {"lora": Lora(rank=2)}, {}),
        ({}, {"gradient_accumulation_steps": 3}, {}),
        ({}, {"microbatch_tokens": 40}, {}),
        ({}, {"gradient_checkpointing": True}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # peft, of GPT-2
def test_a_step_scorer_has_the_gradient_of_rows(base, card, settings, data, request, tmp_path) -> None:
    if "lora" in settings:
        pytest.importorskip("peft")
    found = {}
    for layout in ("padded", "tree"):
        model = reward_model(request.getfixturevalue(base), **card)
        config = TrainingConfig(
            **WHOLE, head_epochs=0, layout=layout, **(settings if layout == "tree" else settings | _PLAIN)
        )
        directory = tmp_path / layout

        def fit(keep, model=model, config=config, directory=directory):
            return train(model, forest(**data), config, directory, progress=keep)

        found[layout] = gradients(model, fit)
    require_equal(found["padded"], found["tree"])


_PLAIN = {"gradient_accumulation_steps": 1, "microbatch_tokens": None, "gradient_checkpointing": False}


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
@pytest.mark.parametrize("kind", ["tokens", "implicit"])
def test_a_language_model_has_the_gradient_of_rows(base, kind, request, tmp_path) -> None:
    path, found = request.getfixturevalue(base), {}
    for layout in ("padded", "tree"):
        directory = tmp_path / layout
        made = None
        if kind == "tokens":
            model, _ = load_causal(path)
        else:
            made = ImplicitPRM.initialise(path)
            model = made.policy
        model.double()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        examples = forest(every=True, pairs=kind == "implicit")
        examples = [
            Example(**{**vars(one), "worse": None, "positions": tuple(range(1, len(one.ids)))})
            for one in examples
        ]

        def fit(keep, layout=layout, directory=directory, examples=examples, model=model, prm=made):
            if kind == "tokens":
                return fit_tokens(
                    model, examples, SFTConfig(**WHOLE, layout=layout), directory,
                    save=lambda _: None, name="it", progress=keep,
                )  # fmt: skip
            config = ImplicitConfig(**WHOLE, layout=layout)
            return train_implicit(prm, examples, config, directory, with_reference=False, progress=keep)

        found[layout] = gradients(model, fit)
    require_equal(found["padded"], found["tree"])


@given(
    seed=st.integers(0, 99),
    tokens=st.none() | st.integers(20, 300),
    steps=st.integers(1, 3),
    world=st.integers(1, 3),
)
def test_cutting_trees_keeps_every_trace_and_the_bound(seed, tokens, steps, world) -> None:
    examples = forest(pairs=seed % 2 == 1)
    batch = [examples[at] for at in np.random.default_rng(seed).permutation(len(examples))]
    config = TrainingConfig(layout="tree", microbatch_tokens=tokens, gradient_accumulation_steps=steps)
    microbatches = cut_microbatches(batch, config, world_size=world)
    assert Counter(map(id, (one for part in microbatches for one in part))) == Counter(map(id, batch))
    for part in microbatches:
        distinct = {
            one.ids[:stop] for item in part for one in item.parts for stop in range(1, len(one.ids) + 1)
        }
        assert tokens_read(part, "tree") == len(distinct)
        assert len(part) == 1 or len(distinct) <= (tokens or 4096)


def test_an_epoch_has_every_item_once_and_the_traces_of_a_problem_together() -> None:
    examples = forest(problems=12)
    config = TrainingConfig(layout="tree", epochs=2, batch_size=24)
    batches = batch_order(examples, config)
    assert Counter(number for batch in batches for number in batch) == dict.fromkeys(range(len(examples)), 2)
    assert batches[: len(batches) // 2] != batches[len(batches) // 2 :]
    for batch in batches:
        problems = Counter(examples[number].trace_id.split("/")[0] for number in batch)
        assert len(problems) <= 4, "a batch of 24 holds two problems of 11 traces, and two ends"
    shuffled = [examples[at] for at in (0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5)]
    [whole] = batch_order(shuffled, TrainingConfig(layout="tree", epochs=1, batch_size=11))
    assert [shuffled[number].ids for number in whole] == sorted(item.ids for item in shuffled), "depth first"
    alike = [replace(examples[0], ids=(1, 2, number % 4096)) for number in range(2 * 4096)]
    for batch in batch_order(alike, TrainingConfig(layout="tree", epochs=1, batch_size=64)):
        assert len({number < 4096 for number in batch}) == 1, "of one tree, so many items are in memory"


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_flex_attention_sees_what_the_blocks_see(lab_base) -> None:
    """The block mask of a GPU, here through FlexAttention's uncompiled reference."""
    model = reward_model(lab_base)
    parts = forest()
    outputs = []
    with tree_attention.attending_to_trees(model.trunk), torch.no_grad():
        batch = lay_out(parts, "tree", torch.device("cpu"), trunk=model.trunk)
        tree = batch.shared_rows["tree"]
        intervals = key_intervals(tree_branches(parts)[0])
        mask = tree_attention.flex_mask(intervals, torch.device("cpu"))
        for seen in (tree, tree_attention.TreePass(slots=tree.slots, blocks=[], block_mask=mask)):
            shared = batch.shared_rows | {"tree": seen}
            outputs.append(model(batch.ids_bt, None, batch.rows_s, batch.at_s, **shared))
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@pytest.mark.parametrize("layout", ["packed", "tree"])
def test_nothing_is_as_large_as_the_square_of_the_row(lab_base, layout) -> None:
    model = reward_model(lab_base)
    parts = forest(problems=60)
    with torch.no_grad(), tree_attention.attending_to_trees(model.trunk):
        batch = lay_out(parts, layout, torch.device("cpu"), trunk=model.trunk)
        with Largest() as made:
            model(batch.ids_bt, None, batch.rows_s, batch.at_s, **batch.shared_rows)
    assert batch.ids_bt.shape[1] == tokens_read(parts, layout) > 2000
    assert made.elements < batch.ids_bt.shape[1] ** 2 / 4


def test_a_trunk_that_does_not_tell_branches_apart_is_refused(lab_base) -> None:
    trunk = reward_model(lab_base).trunk
    trunk.config.sliding_window = 4
    for layout in ("packed", "tree"):
        with pytest.raises(TrainingError, match=f"layout '{layout}'"):
            with_layout(TrainingConfig(layout=layout), trunk)
    assert with_layout(TrainingConfig(), trunk).layout == "padded"
