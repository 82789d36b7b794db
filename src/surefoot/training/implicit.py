"""Training of implicit process reward models: outcomes in, a language model out (Yuan et al., 2412.01981).

Updates, checkpoints and curves work as for the other reward models (``surefoot.training``), so a killed run
resumes with the losses that it would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from surefoot.errors import TrainingError
from surefoot.models.engine.causal import read_logprobs
from surefoot.models.kinds.implicit import ImplicitPRM, counted_tokens, response_of
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.training.batches import TokenReader, lay_out, sharing_rows, with_layout
from surefoot.training.config import ImplicitConfig, Layout, TrainingLog
from surefoot.training.examples import DropCounter, Example, ExampleSet
from surefoot.training.loop import BETAS, Progress, finish, run_updates
from surefoot.training.optimisation import ModelOptimiser, full_state, open_distributed, recompute_activations


def build_outcome_examples(
    model: ImplicitPRM, items: Sequence[ProblemTrace] | Sequence[LabelledTrace]
) -> ExampleSet:
    """Encode traces with their outcomes; step labels, if there are any, are ignored.

    An example's ``positions`` are the tokens that count, its only target is the outcome. Traces without
    outcome or steps, and traces longer than the context (a part does not have the outcome of the whole),
    are dropped and counted. Raises ``TrainingError`` if nothing is left, or if all outcomes are the same.
    """
    drops = DropCounter()
    usable = []
    for item in items:
        if item.trace.outcome is None:
            drops.add("traces without outcome", item.trace.id)
        elif not item.trace.steps:
            drops.add("traces without steps", item.trace.id)
        else:
            usable.append(ProblemTrace(problem=item.problem, trace=item.trace))
    examples = []
    for item, encoded in zip(usable, model.encode(usable), strict=True):
        response = response_of(encoded)
        if encoded.truncated_steps or response is None:
            drops.add("traces longer than the context", item.trace.id)
            continue
        positions = tuple(token for tokens in counted_tokens(encoded) for token in tokens)
        targets = (float(item.trace.outcome or False),)
        examples.append(
            Example(trace_id=item.trace.id, ids=response[0], positions=positions, targets=targets)
        )
    built = drops.example_set(examples)
    if len({example.targets for example in examples}) == 1:
        raise TrainingError(
            f"all {len(examples)} traces have the same outcome: "
            "take more samples per problem, or other problems"
        )
    return built


class OutcomeLoss(torch.nn.Module):
    """-[l log σ(r) + (1 - l) log(1 - σ(r))] with r = beta (log π(y) - log π_ref(y)), summed over traces.

    Log π_ref(y) of all ``examples`` is computed here, once.
    """

    def __init__(self, model: ImplicitPRM, examples: Sequence[Example], layout: Layout | None = None) -> None:
        super().__init__()
        self.reader, self._beta, self._layout = TokenReader(model.policy), model.settings.beta, layout
        distinct = list(dict.fromkeys(examples))
        first = [min(example.positions) for example in distinct]
        logprobs_of, _ = read_logprobs(model.reference, [example.ids for example in distinct], first)
        self._reference = {
            example: float(logprobs[torch.tensor(example.positions) - start].double().sum())
            for example, logprobs, start in zip(distinct, logprobs_of, first, strict=True)
        }

    def forward(self, parts: Sequence[Example]) -> torch.Tensor:
        """Sum of the losses of some of the examples, with gradient."""
        rewards = self.rewards(parts)
        targets = torch.tensor([part.targets[0] for part in parts], device=rewards.device)
        return binary_cross_entropy_with_logits(rewards, targets, reduction="sum")

    def rewards(self, parts: Sequence[Example]) -> torch.Tensor:
        """r(y) of each, shape [B], in log odds, with gradient."""
        model, device = self.reader.model, self.reader.model.device
        batch = lay_out(parts, self._layout, device, trunk=model.base_model)
        logprobs = self.reader(batch.predicting())[0]
        of_part = [number for number, part in enumerate(parts) for _ in part.positions]
        sums = logprobs.new_zeros(len(parts)).index_add(0, torch.tensor(of_part, device=device), logprobs)
        return self._beta * (sums - torch.tensor([self._reference[part] for part in parts], device=device))


def train_implicit(
    model: ImplicitPRM,
    examples: Sequence[Example],
    config: ImplicitConfig,
    directory: Path,
    *,
    with_reference: bool = True,
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model`` on :func:`build_outcome_examples` and save it; returns the log, also ``training.json``.

    The loss is the mean over an update's traces; the paper takes 8 samples a problem. EurusPRM (7B) had a
    learning rate of 5e-7 and 64 traces an update. ``progress`` gets (updates done, updates in all, loss).
    Continues from ``directory/checkpoint.safetensors`` if there is one. Several processes as in
    :func:`surefoot.training.train`; each holds the whole reference.

    Raises ``TrainingError`` naming the traces of a batch whose loss or gradient is not finite.
    """
    processes = open_distributed(config.report_to, config, directory)
    config = with_layout(config, model.policy.base_model)
    summed = OutcomeLoss(model, examples, config.layout)  # reads the reference, without dropout
    policy = model.policy.train()
    if config.gradient_checkpointing:
        recompute_activations(policy)
    optimiser = ModelOptimiser(
        policy, config, name="the implicit reward model", betas=BETAS, processes=processes, reader=summed
    )
    with sharing_rows(policy.base_model, config.layout):
        log = run_updates(
            optimiser,
            examples,
            lambda microbatch, traces: optimiser.called(microbatch) / traces,
            config,
            directory,
            processes=processes,
            progress=progress,
        )
    policy.eval()
    save = partial(model.save, directory, with_reference=with_reference, state=full_state(policy))
    finish(directory, config, log, processes, save)
    return log
