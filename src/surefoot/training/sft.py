"""Supervised fine-tuning of a generative verifier: next-token loss on the critique, none on the prompt.

The order of batches depends on the seed alone and a checkpoint holds weights, optimiser and position, so a
run that is killed goes on with the losses it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.models.card import CARD, CheckpointCard
from surefoot.models.generative import FAMILY, FORMAT
from surefoot.models.reward_model import pad_batch
from surefoot.models.verifier_format import VerifierFormat
from surefoot.store import write_json
from surefoot.training.config import rate_share
from surefoot.training.generative_data import SftExample

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class SftConfig(BaseModel):
    """How to fine-tune. Defaults are ThinkPRM's for 1.5B (full weights); the lab's models want 1e-3."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=3, ge=1)
    batch_size: int = Field(default=32, ge=1)
    """Critiques per update."""
    learning_rate: float = Field(default=6e-5, gt=0)
    weight_decay: float = 0.01
    warmup: float = Field(default=0.05, ge=0, le=1)
    """Share of the updates in which the rate rises; then it falls linearly to 0."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    checkpoint_every: int = Field(default=200, ge=1)
    """Updates between checkpoints."""


class SftLog(BaseModel):
    """One loss an update (mean over the critique's tokens), and all tokens read."""

    losses: list[float] = Field(default_factory=list)
    tokens: int = 0


def train_verifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[SftExample],
    form: VerifierFormat,
    config: SftConfig,
    directory: Path,
    *,
    base: str,
    label_source: str,
    progress: Callable[[int, int, float], None] | None = None,
) -> SftLog:
    """Fine-tune ``model`` (a causal language model) and save it as a generative checkpoint.

    The directory can be loaded by :func:`surefoot.models.generative.load_verifier` and, as an ordinary
    transformers checkpoint, by anything else. ``progress`` gets (updates done, updates in all, loss). Goes on
    from ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` for no examples, one longer than the model's context, or a loss that is not
    finite, naming the traces.
    """
    _check(model, examples)
    checkpoint = directory / "checkpoint.safetensors"
    batches = _batches(examples, config)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.98)
    )
    log = _restore(checkpoint, parameters, optimiser)
    model.train()
    for update in range(len(log.losses), len(batches)):
        batch = [examples[number] for number in batches[update]]
        for group in optimiser.param_groups:
            group["lr"] = config.learning_rate * rate_share(update, len(batches), config.warmup)
        torch.manual_seed(config.seed + update)  # dropout, too, is the same after a restart
        loss = _loss(model, batch)
        if not math.isfinite(loss.item()):
            names = ", ".join(example.trace_id for example in batch[:8])
            raise TrainingError(
                f"the loss is {loss.item()} at update {update}; traces of this batch: {names}"
            )
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip)
        optimiser.step()
        log.losses.append(loss.item())
        log.tokens += sum(len(example.ids) for example in batch)
        if progress:
            progress(update + 1, len(batches), loss.item())
        if (update + 1) % config.checkpoint_every == 0 and update + 1 < len(batches):
            _save(checkpoint, parameters, optimiser, log)
    card = CheckpointCard(
        family=FAMILY,
        kind="prm",
        aggregation="last",
        score_means="correctness",
        label_source=label_source,
        base=base,
    )
    _finish(model.eval(), tokenizer, form, card, directory)
    write_json(directory / "training.json", {"config": config.model_dump(), **log.model_dump()})
    checkpoint.unlink(missing_ok=True)
    return log


def _check(model: PreTrainedModel, examples: Sequence[SftExample]) -> None:
    if not examples:
        raise TrainingError("no examples to train on")
    limit = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 30))
    longest = max(examples, key=lambda example: len(example.ids))
    if len(longest.ids) > limit:
        raise TrainingError(
            f"trace {longest.trace_id}: its example has {len(longest.ids)} tokens, the model's context is "
            f"{limit}; lower max_tokens when the examples are built"
        )


def _loss(model: PreTrainedModel, batch: Sequence[SftExample]) -> torch.Tensor:
    """Mean cross-entropy of the critiques' tokens; prompts and padding are left out."""
    ids, mask = pad_batch([example.ids for example in batch])
    starts = torch.tensor([example.prompt for example in batch])[:, None]
    learned = mask.bool() & (torch.arange(ids.shape[1])[None] >= starts)
    targets = ids.masked_fill(~learned, -100)[:, 1:]
    device = next(model.parameters()).device
    logits = model(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1).float(), targets.flatten().to(device))


def _batches(examples: Sequence[SftExample], config: SftConfig) -> list[list[int]]:
    """Example numbers of every update; each epoch sees each once, in a new order."""
    rng = np.random.default_rng(config.seed)
    batches = []
    for _ in range(config.epochs):
        order = rng.permutation(len(examples)).tolist()
        batches += [order[at : at + config.batch_size] for at in range(0, len(order), config.batch_size)]
    return batches


def _finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    form: VerifierFormat,
    card: CheckpointCard,
    directory: Path,
) -> None:
    """Write the checkpoint; the card comes last and atomically: a directory that has it is complete."""
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    write_json(directory / FORMAT, form.model_dump())
    write_json(directory / CARD, card.model_dump())


def _save(
    checkpoint: Path,
    parameters: dict[str, torch.nn.Parameter],
    optimiser: torch.optim.Optimizer,
    log: SftLog,
) -> None:
    """One file, renamed into place: whole or absent, whenever the process is killed."""
    tensors = {f"parameter/{name}": parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        tensors |= {f"{key}/{name}": value for key, value in optimiser.state[parameter].items()}
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    temporary = checkpoint.with_name(f".{checkpoint.name}.part")
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, temporary, {"log": log.model_dump_json()})
    temporary.replace(checkpoint)


def _restore(
    checkpoint: Path, parameters: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer
) -> SftLog:
    if not checkpoint.exists():
        return SftLog()
    with safe_open(checkpoint, framework="pt") as state, torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state.get_tensor(f"parameter/{name}"))
            values = {key: state.get_tensor(f"{key}/{name}") for key in _MOMENTS}
            optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in values.items()
            }
        return SftLog.model_validate_json(state.metadata()["log"])
