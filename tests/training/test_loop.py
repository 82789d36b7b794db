import json
import math
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from surefoot.errors import TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import encode_traces
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.training.classifier import train
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import Example

CARD = CheckpointCard(kind="prm", label_source="test", base="tiny")


def model_on(base: Path) -> RewardModel:
    return RewardModel.initialise(base, CARD)


def examples_of(model: RewardModel, items) -> list[Example]:
    """Each step of a right solution is good, each of a wrong one bad."""
    return [
        Example(
            trace_id=item.trace.id,
            ids=encoded.ids,
            positions=encoded.positions,
            targets=(float(item.trace.outcome),) * len(encoded.positions),
        )
        for item, encoded in zip(
            items, encode_traces(model.tokenizer, model.card.encoding, items), strict=True
        )
    ]


def weights(model: RewardModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def logits(model: RewardModel, example: Example) -> torch.Tensor:
    with torch.no_grad():
        hidden = model.trunk(input_ids=torch.tensor([example.ids])).last_hidden_state
        return model.head(hidden[0, list(example.positions)])[:, 0].double()


def random_head(model: RewardModel) -> RewardModel:
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model


def test_the_first_loss_is_the_cross_entropy_by_hand(lab_base, lab_items, tmp_path):
    model = random_head(model_on(lab_base))
    examples = examples_of(model, lab_items[:3])
    examples[0] = Example(**{**vars(examples[0]), "targets": (0.25,) * len(examples[0].positions)})
    terms = []
    for example in examples:
        for value, target in zip(logits(model, example).tolist(), example.targets, strict=True):
            chance = 1 / (1 + math.exp(-value))
            terms.append(-target * math.log(chance) - (1 - target) * math.log(1 - chance))
    log = train(model, examples, TrainingConfig(epochs=1, batch_size=3, head_epochs=0), tmp_path)
    assert log.losses == [pytest.approx(sum(terms) / len(terms), rel=1e-4)]
    assert log.tokens == sum(len(example.ids) for example in examples)


def test_no_gradient_where_the_prediction_is_the_soft_target(lab_base, lab_items, tmp_path):
    model = random_head(model_on(lab_base))
    exact = [
        Example(**{**vars(example), "targets": tuple(torch.sigmoid(logits(model, example)).tolist())})
        for example in examples_of(model, lab_items[:2])
    ]
    norms = []
    train(
        model,
        exact,
        TrainingConfig(epochs=1, batch_size=2, head_epochs=0),
        tmp_path,
        progress=lambda *_: norms.append(max(p.grad.abs().max().item() for p in model.parameters())),
    )
    assert norms[0] < 1e-4


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_run_that_is_stopped_goes_on_to_equal_numbers(base, stop_after, lab_items, tmp_path, request):
    folder = request.getfixturevalue(base)
    config = TrainingConfig(epochs=2, batch_size=4, checkpoint_every=2)
    whole = model_on(folder)
    examples = examples_of(whole, lab_items)
    expected = train(whole, examples, config, tmp_path / "whole")

    def stop(done: int, total: int, loss: float) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(model_on(folder), examples, config, tmp_path / "cut", progress=stop)
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists() == (stop_after > 2)
    resumed = model_on(folder)
    updates: list[int] = []
    log = train(resumed, examples, config, tmp_path / "cut", progress=lambda done, *_: updates.append(done))
    assert updates[0] == (stop_after - 1) // 2 * 2 + 1, "work before the checkpoint is not repeated"
    assert log == expected
    assert same(weights(resumed), weights(whole))
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()
    files = {path.name for path in (tmp_path / "whole").iterdir()}
    assert all(
        (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in files
    )


def forked(work: Callable[[], None]) -> int:
    """The id of a process that does ``work``; one thread, as the parent's threads do not exist in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        torch.set_num_threads(1)
        work()
        status = 0
    finally:
        os._exit(status)


def test_a_process_that_is_killed_goes_on_to_equal_numbers(lab_base, lab_items, tmp_path):
    config = TrainingConfig(epochs=6, batch_size=4, checkpoint_every=1)
    examples = examples_of(model_on(lab_base), lab_items)

    def fit(name: str, seconds: float = 0.0) -> None:
        model = model_on(lab_base)
        train(model, examples, config, tmp_path / name, progress=lambda *_: time.sleep(seconds))

    process = forked(lambda: fit("cut", 0.1))
    checkpoint = tmp_path / "cut" / "checkpoint.safetensors"
    while not checkpoint.exists():
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended before it could be killed"
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    assert checkpoint.exists()
    for name in ("cut", "whole"):
        assert os.waitpid(forked(lambda name=name: fit(name)), 0)[1] == 0
    for name in ("training.json", "model.safetensors", "head.safetensors", "surefoot.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_frozen_trunk_stays_and_its_head_is_a_logistic_regression(lab_base, lab_items, tmp_path):
    model = model_on(lab_base)
    before = {name: tensor for name, tensor in weights(model).items() if name.startswith("trunk")}
    examples = examples_of(model, lab_items)
    config = TrainingConfig(
        epochs=2, batch_size=len(examples), learning_rate=1e-3, freeze_trunk=True, warmup=0, max_grad_norm=1e9
    )
    log = train(model, examples, config, tmp_path)
    assert same(before, {name: tensor for name, tensor in weights(model).items() if name in before})

    features, targets = [], []
    with torch.no_grad():
        for example in examples:
            hidden = model.trunk(input_ids=torch.tensor([example.ids])).last_hidden_state
            features.append(hidden[0, list(example.positions)])
            targets += example.targets
    head = torch.nn.Linear(32, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimiser = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.01, betas=(0.9, 0.98))
    losses = []
    for rate in (1e-3, 0.5e-3):
        optimiser.param_groups[0]["lr"] = rate
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            head(torch.cat(features))[:, 0], torch.tensor(targets)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert log.losses == pytest.approx(losses, rel=1e-4)
    assert torch.allclose(model.head.weight, head.weight, atol=1e-5)


def test_a_separable_task_is_learnt(lab_base, tmp_path):
    """Good traces hold an even digit at the step's end, bad ones an odd digit."""
    examples = [
        Example(
            trace_id=str(digit * 10 + first),
            ids=(1, 4 + first, 22, 4 + digit),
            positions=(3,),
            targets=(1.0 - digit % 2,),
        )
        for digit in range(10)
        for first in range(4)
    ]
    model = model_on(lab_base)
    log = train(
        model, examples, TrainingConfig(epochs=20, batch_size=10, learning_rate=5e-3, head_epochs=0), tmp_path
    )
    assert log.losses[0] == pytest.approx(math.log(2), rel=1e-4)
    assert max(log.losses[-4:]) < 0.1
    assert json.loads((tmp_path / "training.json").read_text())["losses"] == log.losses


def test_what_was_trained_is_what_is_saved(lab_base, lab_items, tmp_path):
    model = model_on(lab_base)
    train(model, examples_of(model, lab_items), TrainingConfig(epochs=1, batch_size=4), tmp_path)
    assert not model.training
    saved = Scorer(RewardModel.load(tmp_path), name="m").score_traces(lab_items)
    assert saved == Scorer(model, name="m").score_traces(lab_items)


def test_equal_seeds_give_equal_losses_and_others_another_order(lab_base, lab_items, tmp_path):
    def losses(seed: int, out: str) -> list[float]:
        model = model_on(lab_base)
        config = TrainingConfig(epochs=1, batch_size=2, seed=seed)
        return train(model, examples_of(model, lab_items), config, tmp_path / out).losses

    assert losses(0, "a") == losses(0, "b") != losses(1, "c")


def test_a_loss_that_is_no_number_names_the_traces(lab_base, lab_items, tmp_path):
    model = model_on(lab_base)
    with torch.no_grad():
        model.head.bias.fill_(math.nan)
    examples = examples_of(model, lab_items[:2])
    with pytest.raises(TrainingError, match="nan at update 0") as caught:
        train(model, examples, TrainingConfig(epochs=1), tmp_path)
    assert all(example.trace_id in str(caught.value) for example in examples)
    assert not (tmp_path / "surefoot.json").exists()
