"""Fine-tuning of a causal language model on chosen tokens: what verifiers and cloned policies share.

The loss is the next-token cross-entropy of the tokens at the examples' positions, averaged over those of an
update; the other tokens are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel

from surefoot.errors import CheckpointError, TrainingError
from surefoot.models.engine.causal import require_plain_head, target_logprobs
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.training.batches import can_pack, lay_out
from surefoot.training.config import SFTConfig, TrainingLog
from surefoot.training.targets import Example
from surefoot.training.updates import Progress, run_updates


def fit_tokens(
    model: PreTrainedModel,
    examples: Sequence[Example],
    config: SFTConfig,
    directory: Path,
    *,
    save: Callable[[], None],
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model``, or an adapter of it (``config.lora``), on the tokens at the examples' positions.

    ``save`` writes the result and is called at the end. ``progress`` gets
    (updates done, updates in all, loss). Goes on from ``directory/checkpoint.safetensors`` if there is one.
    One process.

    Raises ``TrainingError`` for no examples, one longer than the model's context,
    an adapter whose base could not be found again, or a loss or gradient that is not finite, naming the
    traces.
    """
    _check_examples(model, examples)
    if config.layout == "packed" and not can_pack(model.base_model):
        raise TrainingError(
            "traces packed into one row would see each other in this model; use the layout 'padded'"
        )
    if config.lora and not has_adapter(model):
        _check_base(model)
        add_adapter(model, config.lora, seed=config.seed)
    return run_updates(
        model,
        examples,
        TokenLoss(model, config),
        config,
        directory,
        terms=lambda example: len(example.positions),
        layout=config.layout,
        save=save,
        progress=progress,
    )


class TokenLoss:
    """Cross-entropy of the tokens at the examples' positions, in nats, summed; the others are only read.

    The head is applied to those positions, some at a time, where the logits are its plain product.
    """

    def __init__(self, model: PreTrainedModel, config: SFTConfig) -> None:
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


def context_of(model: PreTrainedModel) -> int:
    """Tokens that ``model`` can read; very many where it does not say."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))


def _check_examples(model: PreTrainedModel, examples: Sequence[Example]) -> None:
    if not examples:
        raise TrainingError("no examples to train on")
    limit = context_of(model)
    longest = max(examples, key=lambda example: example.length)
    if longest.length > limit:
        raise TrainingError(
            f"trace {longest.trace_id}: its example has {longest.length} tokens, the model's context is "
            f"{limit}; lower max_tokens or max_length when the examples are built"
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
