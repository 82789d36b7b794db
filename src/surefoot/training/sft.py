"""Supervised fine-tuning of a causal language model on chosen tokens.

Generative verifiers learn critiques, and cloned policies (:mod:`surefoot.training.cloning`) the steps of
traces. The loss is the next-token cross-entropy of the tokens at the examples' positions, averaged over those
of an update; the other tokens are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, TrainingError
from surefoot.io.hub import checkpoint_directory
from surefoot.models.card import CheckpointCard
from surefoot.models.engine.causal import require_plain_head, token_statistics
from surefoot.models.engine.packed_attention import attending_to_each, packed_inputs
from surefoot.models.kinds.generative import FAMILY, VerifierCheckpoint
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.training.batches import can_pack, lay_out
from surefoot.training.config import SFTConfig, TrainingLog, VerifierConfig
from surefoot.training.distributed import full_state, open_distributed
from surefoot.training.examples import Example
from surefoot.training.loop import BETAS, Progress, finish, run_updates
from surefoot.training.optimisation import ModelOptimiser, recompute_activations


def train_verifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    form: VerifierFormat,
    config: VerifierConfig,
    directory: Path,
    *,
    base: str,
    label_source: str,
    progress: Progress | None = None,
) -> TrainingLog:
    """Fine-tune ``model`` (a causal language model) and save it as a generative checkpoint.

    ``examples`` come from :func:`surefoot.training.critiques.build_critique_examples`. The loss is the
    mean over the critiques' tokens of an update. With ``config.lora`` an adapter is trained and saved
    instead of the whole model, which then has to stay where it was loaded from.

    The directory can be loaded by :func:`surefoot.models.kinds.generative.load_verifier` and, as an ordinary
    transformers (or peft) checkpoint, by anything else. ``progress`` gets (updates done, updates in all,
    loss). Resumes from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` for no examples, one longer than the model's context,
    an adapter whose base could not be found again, or a loss or gradient that is not finite, naming the
    traces.
    """
    card = CheckpointCard(
        family=FAMILY,
        kind="prm",
        aggregation="last",
        score_means="correctness",
        label_source=label_source,
        base=base,
    )
    trained = VerifierCheckpoint(model=model, tokenizer=tokenizer, form=form, card=card)
    return fit_tokens(
        model,
        examples,
        config,
        directory,
        save=lambda state: trained.save(directory, state=state),
        name="the verifier",
        progress=progress,
    )


def fit_tokens(
    model: PreTrainedModel,
    examples: Sequence[Example],
    config: SFTConfig,
    directory: Path,
    *,
    save: Callable[[Mapping[str, torch.Tensor]], None],
    name: str,
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model``, or an adapter of it (``config.lora``), on the tokens at the examples' positions.

    ``save`` gets the weights and writes the result, at the end and in one process; ``name`` is the model's
    name in errors. ``progress`` gets (updates done, updates in all, loss). Resumes from
    ``directory/checkpoint.safetensors`` if there is one. Several processes as in
    :func:`surefoot.training.train`.

    Raises ``TrainingError`` for no examples, one longer than the model's context, an adapter whose base could
    not be found again, or a loss or gradient that is not finite, naming the traces.
    """
    _check_examples(model, examples)
    if config.layout == "packed" and not can_pack(model.base_model):
        raise TrainingError(
            "traces packed into one row would see each other in this model; use the layout 'padded'"
        )
    if config.lora and not has_adapter(model):
        _check_base(model)
        add_adapter(model, config.lora, seed=config.seed)
    model.train()
    if config.gradient_checkpointing:
        recompute_activations(model)
    processes = open_distributed(config.report_to, config, directory)
    optimiser = ModelOptimiser(
        model, config, name=name, betas=BETAS, processes=processes, reader=TokenLoss(model, config)
    )
    with attending_to_each(model.base_model) if config.layout == "packed" else nullcontext():
        log = run_updates(
            optimiser,
            examples,
            lambda microbatch, tokens: optimiser.called(microbatch) / tokens,
            config,
            directory,
            processes=processes,
            terms=lambda example: len(example.positions),
            layout=config.layout,
            progress=progress,
        )
    model.eval()
    finish(directory, config, log, processes, partial(save, full_state(model)))
    return log


class TokenLoss(torch.nn.Module):
    """Cross-entropy of the tokens at the examples' positions, in nats, summed; the others are only read.

    The head is applied to those positions, some at a time, where the logits are its plain product.
    """

    def __init__(self, model: PreTrainedModel, config: SFTConfig) -> None:
        super().__init__()
        self.model, self._config = model, config
        try:
            require_plain_head(model)
            self._plain = True
        except CheckpointError:
            self._plain = False  # scaled or capped: ask the model itself for all logits

    def forward(self, parts: Sequence[Example]) -> torch.Tensor:
        """Of some examples, with gradient."""
        device = self.model.device
        batch = lay_out(parts, self._config.layout, device)
        packed = packed_inputs(self.model, batch.position_ids_bt, batch.lengths)
        positions = (batch.rows_s, batch.at_s - 1)  # a token is predicted where the one before it is read
        targets = batch.ids_bt[batch.rows_s, batch.at_s]
        called = self.model.base_model if self._plain else self.model
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._config.bf16):
            output = called(input_ids=batch.ids_bt, attention_mask=batch.mask_bt, use_cache=False, **packed)
            if self._plain:
                return -token_statistics(self.model, output.last_hidden_state[positions], targets)[0].sum()
        return torch.nn.functional.cross_entropy(output.logits[positions].float(), targets, reduction="sum")


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
    has = int(AutoConfig.from_pretrained(checkpoint_directory(name)).get_text_config().vocab_size)
    needs = model.get_input_embeddings().weight.shape[0]
    if has != needs:
        raise TrainingError(
            f"the model has embeddings of {needs} tokens, its base {name} of {has}, and an adapter holds "
            "none: save the model and load it from there, or train without 'lora'"
        )
