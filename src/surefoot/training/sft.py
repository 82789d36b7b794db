"""Supervised fine-tuning of a generative verifier: next-token loss on the critique, none on the prompt.

Updates, checkpoints and curves are those of the other reward models, so a killed run goes on with the losses
that it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, TrainingError
from surefoot.models.card import CheckpointCard
from surefoot.models.causal import require_plain_head, target_logprobs
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.models.verifier_checkpoint import FAMILY, VerifierCheckpoint
from surefoot.models.verifier_format import VerifierFormat
from surefoot.training.batches import can_pack, lay_out
from surefoot.training.config import TrainingConfig, TrainingLog
from surefoot.training.targets import Example
from surefoot.training.updates import Progress, refuse_options, run_updates

_FOREIGN = (
    "freeze_trunk",
    "head_epochs",
    "head_learning_rate",
    "loss",
    "evaluate_every",
    "patience",
    "report_to",
)
"""Options of ``TrainingConfig`` that mean nothing here, or are not built."""


def train_verifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    form: VerifierFormat,
    config: TrainingConfig,
    directory: Path,
    *,
    base: str,
    label_source: str,
    progress: Progress | None = None,
) -> TrainingLog:
    """Fine-tune ``model`` (a causal language model) and save it as a generative checkpoint.

    ``examples`` are those of :func:`surefoot.training.generative_data.build_sft_set`. The loss is the mean
    over the critiques' tokens of an update. ThinkPRM (1.5B) had a learning rate of 6e-5, 32 critiques an
    update and 3 epochs. With ``config.lora`` an adapter is trained and saved in place of the whole model,
    which then has to stay where it was loaded from. One process.

    The directory can be loaded by :func:`surefoot.models.generative.load_verifier` and, as an ordinary
    transformers (or peft) checkpoint, by anything else. ``progress`` gets (updates done, updates in all,
    loss). Goes on from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` for no examples, one longer than the model's context, options that do not apply,
    an adapter whose base could not be found again, or a loss or gradient that is not finite, naming the
    traces.
    """
    refuse_options(config, _FOREIGN, "generative verifiers")
    _check_examples(model, examples)
    if config.layout == "packed" and not can_pack(model.base_model):
        raise TrainingError(
            "traces packed into one row would see each other in this model; use the layout 'padded'"
        )
    if config.lora and not has_adapter(model):
        _check_base(model)
        add_adapter(model, config.lora, seed=config.seed)
    card = CheckpointCard(
        family=FAMILY,
        kind="prm",
        aggregation="last",
        score_means="correctness",
        label_source=label_source,
        base=base,
    )
    trained = VerifierCheckpoint(model=model, tokenizer=tokenizer, form=form, card=card)
    return run_updates(
        model,
        examples,
        CritiqueLoss(model, config),
        config,
        directory,
        terms=lambda example: len(example.positions),
        save=lambda: trained.save(directory),
        progress=progress,
    )


class CritiqueLoss:
    """Cross-entropy of the tokens at the examples' positions, in nats, summed; the others are only read.

    The head is applied to those positions, some at a time, where the logits are its plain product.
    """

    def __init__(self, model: PreTrainedModel, config: TrainingConfig) -> None:
        self._model, self._config = model, config
        try:
            require_plain_head(model)
            self._plain = True
        except CheckpointError:
            self._plain = False  # scaled or capped: ask the model itself for all logits

    def __call__(self, parts: Sequence[Example]) -> torch.Tensor:
        """Of some examples, with gradient."""
        device = self._model.device
        given = lay_out(parts, self._config.layout, device)
        depths = {} if given.depths_bt is None else {"position_ids": given.depths_bt}
        before = (given.rows_s, given.at_s - 1)  # a token is predicted where the one before it is read
        targets = given.ids_bt[given.rows_s, given.at_s]
        called = self._model.base_model if self._plain else self._model
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._config.bf16):
            output = called(input_ids=given.ids_bt, attention_mask=given.mask_bt, use_cache=False, **depths)
            if self._plain:
                return -target_logprobs(self._model, output.last_hidden_state[before], targets).sum()
        return torch.nn.functional.cross_entropy(output.logits[before].float(), targets, reduction="sum")


def _check_examples(model: PreTrainedModel, examples: Sequence[Example]) -> None:
    if not examples:
        raise TrainingError("no examples to train on")
    limit = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))
    longest = max(examples, key=lambda example: example.length)
    if longest.length > limit:
        raise TrainingError(
            f"trace {longest.trace_id}: its example has {longest.length} tokens, the model's context is "
            f"{limit}; lower max_tokens when the examples are built"
        )


def _check_base(model: PreTrainedModel) -> None:
    """An adapter is saved without its base, and without the base's embeddings."""
    name = model.name_or_path
    if not name:
        raise TrainingError(
            "'lora' needs a base that can be loaded again: save the model and load it from there"
        )
    has = int(AutoConfig.from_pretrained(name).get_text_config().vocab_size)
    needs = model.get_input_embeddings().weight.shape[0]
    if has != needs:
        raise TrainingError(
            f"the model has embeddings of {needs} tokens, its base {name} of {has}, and an adapter holds "
            "none: save the model and load it from there, or train without 'lora'"
        )
