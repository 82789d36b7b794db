"""Training of implicit process reward models: outcomes in, a language model out (Yuan et al., 2412.01981).

Updates, checkpoints and curves are those of the other reward models (``surefoot.training``), so a killed run
goes on with the losses that it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from surefoot.errors import TrainingError
from surefoot.models.causal import target_logprobs
from surefoot.models.implicit import ImplicitPRM, counted_tokens, response_of
from surefoot.models.reward_model import pad_batch
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.store import write_json
from surefoot.training.batches import batch_order, cut_passes
from surefoot.training.checkpoint import load_state, save_state, write_curves
from surefoot.training.config import TrainingConfig, TrainingLog, rate_share
from surefoot.training.targets import Example, ExampleSet, LeftOut

_FOREIGN = (
    "freeze_trunk",
    "head_epochs",
    "loss",
    "lora",
    "layout",
    "bf16",
    "evaluate_every",
    "patience",
    "report_to",
)
"""Options of ``TrainingConfig`` that mean nothing here, or are not built."""


def build_outcome_examples(
    model: ImplicitPRM, items: Sequence[ProblemTrace] | Sequence[LabelledTrace]
) -> ExampleSet:
    """Encode traces with their outcomes; step labels, if there are any, are not looked at.

    An example's ``positions`` are the tokens that count, its only target is the outcome. Traces without
    outcome or steps, and those longer than the context (their outcome is not that of the part), are dropped
    and counted. Raises ``TrainingError`` if nothing is left, or if all outcomes are the same.
    """
    left = LeftOut()
    usable = []
    for item in items:
        if item.trace.outcome is None:
            left.add("traces without outcome", item.trace.id)
        elif not item.trace.steps:
            left.add("traces without steps", item.trace.id)
        else:
            usable.append(ProblemTrace(problem=item.problem, trace=item.trace))
    examples = []
    for item, encoded in zip(usable, model.encode(usable), strict=True):
        response = response_of(encoded)
        if encoded.truncated_steps or response is None:
            left.add("traces longer than the context", item.trace.id)
            continue
        positions = tuple(token for tokens in counted_tokens(encoded) for token in tokens)
        targets = (float(item.trace.outcome or False),)
        examples.append(
            Example(trace_id=item.trace.id, ids=response[0], positions=positions, targets=targets)
        )
    if not examples:
        raise TrainingError(f"nothing to train on: {left}")
    if len({example.targets for example in examples}) == 1:
        raise TrainingError(
            f"all {len(examples)} traces have the same outcome: sample more a problem, or other problems"
        )
    return ExampleSet(examples=examples, dropped=left.counts, first=left.first)


class OutcomeLoss:
    """-[l log σ(r) + (1 - l) log(1 - σ(r))] with r = beta (log π(y) - log π_ref(y)), summed over traces.

    Log π_ref(y) of all ``examples`` is computed here, once; with the model's cache, once for all runs.
    """

    def __init__(self, model: ImplicitPRM, examples: Sequence[Example]) -> None:
        self._model = model
        distinct = list(dict.fromkeys(examples))
        first = [min(example.positions) for example in distinct]
        found, _ = model.reference.logprobs(
            [(e.ids, start) for e, start in zip(distinct, first, strict=True)]
        )
        self._reference = {
            example: float(logprobs[torch.tensor(example.positions) - start].double().sum())
            for example, logprobs, start in zip(distinct, found, first, strict=True)
        }

    def __call__(self, parts: Sequence[Example]) -> torch.Tensor:
        """Sum of the losses of some of the examples, with gradient."""
        rewards = self.rewards(parts)
        targets = torch.tensor([part.targets[0] for part in parts], device=rewards.device)
        return binary_cross_entropy_with_logits(rewards, targets, reduction="sum")

    def rewards(self, parts: Sequence[Example]) -> torch.Tensor:
        """r(y) of each, shape [B], in log odds, with gradient."""
        policy, beta = self._model.policy, self._model.settings.beta
        ids, mask = pad_batch([part.ids for part in parts])
        rows = torch.tensor([row for row, part in enumerate(parts) for _ in part.positions])
        at = torch.tensor([position for part in parts for position in part.positions])
        device = policy.device
        hidden = policy.base_model(
            input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
        ).last_hidden_state
        states = hidden[
            rows.to(device), (at - 1).to(device)
        ]  # a token is predicted where the one before it is read
        logprobs = target_logprobs(policy, states, ids[rows, at])
        sums = logprobs.new_zeros(len(parts)).index_add(0, rows.to(device), logprobs)
        return beta * (sums - torch.tensor([self._reference[part] for part in parts], device=device))


def train_implicit(
    model: ImplicitPRM,
    examples: Sequence[Example],
    config: TrainingConfig,
    directory: Path,
    *,
    with_reference: bool = True,
    progress: Callable[[int, int, float], None] | None = None,
) -> TrainingLog:
    """Train ``model`` on :func:`build_outcome_examples` and save it; returns the log, also ``training.json``.

    The loss is the mean over the traces of an update. ``config.balance`` draws wrong and right traces equally
    often; the paper takes 8 samples a problem as they come. EurusPRM (7B) had a learning rate of 5e-7 and 64
    traces an update. One process. ``progress`` gets (updates done, updates in all, loss). Continues from
    ``directory/checkpoint.safetensors`` if there is one.

    Raises ``TrainingError`` for options that do not apply, and naming the traces of a batch whose loss or
    gradient is not finite.
    """
    _check(config)
    checkpoint = directory / "checkpoint.safetensors"
    policy = model.policy.train()
    if config.gradient_checkpointing:
        # renamed in later releases of transformers 5, where the old name warns
        enable = (
            getattr(policy, "activation_checkpointing_enable", None) or policy.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    parameters = {name: parameter for name, parameter in policy.named_parameters() if parameter.requires_grad}
    optimiser = torch.optim.AdamW(
        parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.98)
    )
    log = load_state(checkpoint, parameters, optimiser)
    batches = batch_order(examples, config)
    rates = [config.learning_rate * rate_share(n, len(batches), config.warmup) for n in range(len(batches))]
    loss = OutcomeLoss(model, examples)
    for update in range(len(log.losses), len(batches)):
        batch = [examples[index] for index in batches[update]]
        for group in optimiser.param_groups:
            group["lr"] = rates[update]
        torch.manual_seed(config.seed + update)  # dropout, too, is the same after a restart
        optimiser.zero_grad()
        log.losses.append(_backward(loss, batch, config, update))
        norm = float(torch.nn.utils.clip_grad_norm_(parameters.values(), config.clip))
        _require_finite(norm, "norm of the gradient", update, batch)
        optimiser.step()
        log.norms.append(norm)
        log.tokens += sum(len(example.ids) for example in batch)
        if progress:
            progress(update + 1, len(batches), log.losses[-1])
        if (update + 1) % config.checkpoint_every == 0 and update + 1 < len(batches):
            save_state(checkpoint, parameters, optimiser, log, write=True)
    policy.eval()
    write_curves(directory / "curves.jsonl", log, rates)
    model.save(directory, with_reference=with_reference)
    write_json(directory / "training.json", {"config": config.model_dump(), **log.model_dump()})
    checkpoint.unlink(missing_ok=True)
    return log


def _backward(loss: OutcomeLoss, batch: list[Example], config: TrainingConfig, update: int) -> float:
    """Gradient of the batch's mean loss, in as many passes as ``config`` wants; returns that loss."""
    total = 0.0
    for one in cut_passes(list(batch), config):
        term = loss(one.parts) / len(batch)
        _require_finite(term.item(), "loss", update, one.parts)
        term.backward()
        total += term.item()
    return total


def _require_finite(value: float, what: str, update: int, batch: Sequence[Example]) -> None:
    if not math.isfinite(value):
        names = ", ".join(example.trace_id for example in batch[:8])
        raise TrainingError(f"the {what} is {value} at update {update}; traces of this batch: {names}")


def _check(config: TrainingConfig) -> None:
    for name in _FOREIGN:
        if getattr(config, name) != TrainingConfig.model_fields[name].default:
            raise TrainingError(
                f"{name!r} is no option of implicit reward models, which train a whole language model"
            )
