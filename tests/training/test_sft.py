"""Fine-tuning of a generative verifier: what is learned, resumed, saved and refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.errors import CheckpointError, TrainingError
from surefoot.lab import critic
from surefoot.lab.world import ExactLabeller
from surefoot.models.generative import load_verifier
from surefoot.models.verifier_format import VerifierFormat
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.training.generative_data import SftExample, build_sft_set, write_critiques
from surefoot.training.sft import SftConfig, _loss, train_verifier

FORM = VerifierFormat(
    template=critic.TEMPLATE,
    chat=False,
    step=critic.STEP,
    opening=critic.OPENING,
    correct=critic.CORRECT,
    incorrect=critic.INCORRECT,
    end=critic.END,
    question=critic.QUESTION,
    yes=(critic.YES,),
    no=(critic.NO,),
)


def base(lab_base: Path):
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(lab_base)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


@pytest.fixture(scope="module")
def examples(lab_base: Path, lab_items: list[ProblemTrace]) -> list[SftExample]:
    labels = asyncio.run(ExactLabeller().label(lab_items))
    items = [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace))
        for item, of_trace in zip(lab_items, labels, strict=True)
    ]
    texts = asyncio.run(write_critiques(critic.NoisyCritic(), items, FORM, chains=1))
    return build_sft_set(base(lab_base)[1], items, texts, FORM).examples


def train(lab_base: Path, examples: list[SftExample], config: SftConfig, directory: Path, **settings):
    model, tokenizer = base(lab_base)
    return train_verifier(
        model, tokenizer, examples, FORM, config, directory, base="tiny", label_source="exact", **settings
    )


def test_the_loss_is_the_critiques_alone(lab_base, examples) -> None:
    """Held to one sequence at a time, without padding, summed by hand."""
    model, _ = base(lab_base)
    total, count = 0.0, 0
    with torch.no_grad():
        for example in examples[:4]:
            logs = model(torch.tensor([example.ids])).logits[0].log_softmax(-1)
            for at in range(example.prompt, len(example.ids)):
                total -= logs[at - 1, example.ids[at]].item()
                count += 1
        assert _loss(model, examples[:4]).item() == pytest.approx(total / count, rel=1e-5)


def test_a_few_critiques_can_be_learned_by_heart_and_are_then_written(
    lab_base, examples, lab_items, tmp_path
) -> None:
    log = train(lab_base, examples, SftConfig(epochs=60, batch_size=6, learning_rate=5e-3), tmp_path / "v")
    assert log.losses[-1] < 0.2 < log.losses[0]
    verifier = load_verifier(tmp_path / "v", sampling=Sampling(temperature=0.0, max_tokens=90))
    assert verifier.card.family == "generative"
    assert verifier.card.label_source == "exact"
    assert verifier.form == FORM
    records = verifier.score_traces(lab_items)
    assert sum(None not in record.scores for record in records) + sum(verifier.invalid.values()) == 12
    right = sum(
        record.scores[-1] is not None and (record.scores[-1] > 0.5) == item.trace.outcome
        for item, record in zip(lab_items, records, strict=True)
    )
    assert right >= 9


def test_a_killed_run_goes_on_with_the_same_losses(lab_base, examples, tmp_path) -> None:
    config = SftConfig(epochs=2, batch_size=4, learning_rate=1e-3, checkpoint_every=2)
    whole = train(lab_base, examples, config, tmp_path / "whole")

    class KilledError(Exception):
        pass

    def kill(update: int, _total: int, _loss: float) -> None:
        if update == 3:
            raise KilledError

    with pytest.raises(KilledError):
        train(lab_base, examples, config, tmp_path / "killed", progress=kill)
    with pytest.raises(CheckpointError):
        load_verifier(tmp_path / "killed")
    assert train(lab_base, examples, config, tmp_path / "killed") == whole
    first, second = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "killed")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()


def test_unusable_examples_are_refused(lab_base, examples, tmp_path) -> None:
    with pytest.raises(TrainingError, match="no examples"):
        train(lab_base, [], SftConfig(), tmp_path)
    long = replace(examples[0], ids=examples[0].ids * 5)
    with pytest.raises(TrainingError, match=f"{long.trace_id}.*context is 128"):
        train(lab_base, [long], SftConfig(), tmp_path)


def test_a_loss_that_is_not_finite_names_its_traces(lab_base, examples, tmp_path) -> None:
    model, tokenizer = base(lab_base)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match=f"at update 0.*{examples[0].trace_id}"):
        train_verifier(
            model, tokenizer, examples[:1], FORM, SftConfig(), tmp_path, base="tiny", label_source="exact"
        )
