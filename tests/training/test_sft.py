"""Fine-tuning of a generative verifier: what is learned, resumed, saved and refused."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from benchmarks.worlds import critic
from benchmarks.worlds.digits.world import ExactLabeller
from surefoot.errors import CheckpointError, TrainingError
from surefoot.models.kinds.generative import load_verifier
from surefoot.models.lora import Lora
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.training.batches import sharing_rows
from surefoot.training.config import VerifierConfig
from surefoot.training.critiques import build_critique_examples, sample_critiques
from surefoot.training.examples import Example
from surefoot.training.sft import TokenLoss, train_verifier

FORM = critic.FORMAT


def resized(lab_base: Path, directory: Path) -> Path:
    """The base with the critic's tokens, saved."""
    model, tokenizer = base(lab_base)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def base(lab_base: Path):
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(lab_base)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model, tokenizer


@pytest.fixture(scope="module")
def examples(lab_base: Path, lab_items: list[ProblemTrace]) -> list[Example]:
    labels = asyncio.run(ExactLabeller().label(lab_items))
    items = [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace))
        for item, of_trace in zip(lab_items, labels, strict=True)
    ]
    written = sample_critiques(critic.NoisyCritic(), lab_items, FORM, chains=1)
    texts = [record.texts for record in asyncio.run(written)]
    return build_critique_examples(base(lab_base)[1], items, texts, FORM).examples


def train(lab_base: Path, examples: list[Example], config: VerifierConfig, directory: Path, **settings):
    model, tokenizer = base(lab_base)
    return train_verifier(
        model, tokenizer, examples, FORM, config, directory, base="tiny", label_source="exact", **settings
    )


def by_hand(model, example: Example) -> float:
    """The sum of one critique's losses, without padding."""
    with torch.no_grad():
        logs = model(torch.tensor([example.ids])).logits[0].log_softmax(-1)
    return -sum(logs[at - 1, example.ids[at]].item() for at in example.positions)


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_the_loss_is_the_critiques_alone(lab_base, examples, layout) -> None:
    model, _ = base(lab_base)
    loss = TokenLoss(model.eval(), VerifierConfig(layout=layout))
    with sharing_rows(model.base_model, layout):
        found = loss(examples[:4])
    assert found.item() == pytest.approx(sum(by_hand(model, one) for one in examples[:4]), rel=1e-5)


def test_logits_that_are_capped_are_taken_from_the_model(examples) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        final_logit_softcapping=0.5,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    model = Gemma2ForCausalLM(config).eval()
    found = TokenLoss(model, VerifierConfig())(examples[:3])
    assert found.item() == pytest.approx(sum(by_hand(model, one) for one in examples[:3]), rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 3},
        {"microbatch_tokens": 150},
        {"layout": "packed", "gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True},
    ],
)
def test_how_an_update_is_computed_does_not_change_it(lab_base, examples, tmp_path, changes) -> None:
    config = VerifierConfig(epochs=1, batch_size=6)
    logs = [
        train(lab_base, examples, config.model_copy(update=update), tmp_path / name)
        for name, update in (("one", {}), ("other", changes))
    ]
    assert logs[1].losses == pytest.approx(logs[0].losses, rel=2e-3)
    assert logs[1].norms == pytest.approx(logs[0].norms, rel=2e-2)
    assert len((tmp_path / "one" / "curves.jsonl").read_text().splitlines()) == 2


def test_a_few_critiques_can_be_learned_by_heart_and_are_then_written(
    lab_base, examples, lab_items, tmp_path
) -> None:
    config = VerifierConfig(epochs=60, batch_size=6, learning_rate=5e-3)
    log = train(lab_base, examples, config, tmp_path / "v")
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


@pytest.mark.parametrize("lora", [None, Lora(rank=4, dropout=0.1)])
def test_a_killed_run_goes_on_with_the_same_losses(lab_base, examples, tmp_path, lora) -> None:
    lab_base = resized(lab_base, tmp_path / "base")
    config = VerifierConfig(epochs=2, batch_size=4, checkpoint_every=2, lora=lora)
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
    first, second = (load_verifier(tmp_path / name).policy.model.state_dict() for name in ("whole", "killed"))
    assert any("lora" in name for name in first) == (lora is not None)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # in peft
def test_an_adapter_is_saved_alone_and_read_back_on_its_base(lab_base, examples, lab_items, tmp_path) -> None:
    lab_base = resized(lab_base, tmp_path / "base")
    model, tokenizer = base(lab_base)
    config = VerifierConfig(epochs=8, batch_size=6, learning_rate=1e-2, lora=Lora(rank=8))
    directory = tmp_path / "v"
    log = train_verifier(
        model, tokenizer, examples, FORM, config, directory, base="tiny", label_source="exact"
    )
    assert log.losses[-1] < log.losses[0] / 2
    assert (directory / "adapter_model.safetensors").is_file()
    assert not (directory / "model.safetensors").exists()
    assert json.loads((directory / "adapter_config.json").read_text())["task_type"] == "CAUSAL_LM"
    ids = torch.tensor([examples[0].ids])
    with torch.no_grad():
        expected = model(ids).logits
        without = base(lab_base)[0](ids).logits
        for library in (AutoModelForCausalLM, AutoPeftModelForCausalLM):
            torch.testing.assert_close(library.from_pretrained(directory)(ids).logits, expected)
        (tmp_path / "base").rename(tmp_path / "moved")
        found = load_verifier(directory, base=tmp_path / "moved")
        torch.testing.assert_close(found.policy.model(ids).logits, expected)
        assert not torch.allclose(without, expected, atol=0.1)
    assert len(found.score_traces(lab_items[:2])) == 2
    with pytest.raises(CheckpointError, match="could not be loaded"):
        load_verifier(directory)


def test_an_adapter_without_a_base_to_come_back_to_is_refused(lab_base, examples, tmp_path) -> None:
    config = VerifierConfig(lora=Lora(rank=2))
    with pytest.raises(TrainingError, match="save the model and load it from there"):
        train(lab_base, examples, config, tmp_path)  # tokens were added to this one
    model, tokenizer = base(resized(lab_base, tmp_path / "base"))
    fresh = type(model)(model.config)
    fresh.name_or_path = ""
    with pytest.raises(TrainingError, match="can be loaded again"):
        train_verifier(
            fresh, tokenizer, examples, FORM, config, tmp_path / "v", base="tiny", label_source="exact"
        )


@pytest.mark.parametrize("name", ["freeze_trunk", "head_epochs", "patience"])
def test_options_that_do_not_apply_are_refused(name) -> None:
    with pytest.raises(ValidationError, match=name):
        VerifierConfig(**{name: 1})


def test_unusable_examples_are_refused(lab_base, examples, tmp_path) -> None:
    with pytest.raises(TrainingError, match="no examples"):
        train(lab_base, [], VerifierConfig(), tmp_path)
    long = replace(examples[0], ids=examples[0].ids * 5)
    with pytest.raises(TrainingError, match=f"{long.trace_id}.*context is 128"):
        train(lab_base, [long], VerifierConfig(), tmp_path)


def test_a_loss_that_is_not_finite_names_its_traces(lab_base, examples, tmp_path) -> None:
    model, tokenizer = base(lab_base)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match=f"at update 0.*{examples[0].trace_id}"):
        train_verifier(
            model,
            tokenizer,
            examples[:1],
            FORM,
            VerifierConfig(),
            tmp_path,
            base="tiny",
            label_source="exact",
        )
