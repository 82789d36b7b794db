"""Supervised fine-tuning of a causal language model on chosen tokens: verifiers and cloned policies.

Generative verifiers learn critiques, cloned policies chosen steps of traces. The loss is the next-token
cross-entropy of the tokens at the examples' positions, averaged over an update; other tokens are context.

In step-level behaviour cloning the problem and the other steps are context without loss
(:class:`Demonstration` says which steps count). So of a solution that goes wrong its good steps can be
learned alone. The result is an ordinary checkpoint of transformers, or an adapter of peft.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.io.atomic import write_json
from surefoot.io.sources import checkpoint_directory, reading_checkpoint
from surefoot.labels import LabelRule, improves
from surefoot.models.card import GENERATIVE, VERIFIER_FORMAT, CheckpointCard, write_card
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.engine.causal import save_causal
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.policies.pretrained import context_length
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Record, Trace
from surefoot.training.batches import TokenReader, lay_out, sharing_rows, with_layout
from surefoot.training.config import SFTConfig, TrainingLog, VerifierConfig
from surefoot.training.examples import DropCounter, Example, ExampleSet
from surefoot.training.loop import BETAS, Progress, finish, run_updates
from surefoot.training.optimisation import ModelOptimiser, full_state, open_distributed, recompute_activations


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

    ``examples`` come from :func:`surefoot.training.critiques.build_critique_examples`. The rest is as in
    :func:`fit_tokens`; an adapter's base has to stay where it was loaded from. The directory can be loaded by
    :func:`surefoot.models.kinds.generative.load_verifier` and, as an ordinary transformers (or peft)
    checkpoint, by anything else.
    """
    card = CheckpointCard(
        family=GENERATIVE,
        kind="prm",
        aggregation="last",
        score_means="correctness",
        label_source=label_source,
        base=base,
    )

    def save(state: Mapping[str, torch.Tensor]) -> None:
        save_causal(model, tokenizer, directory, state=state)
        write_json(directory / VERIFIER_FORMAT, form.model_dump())
        write_card(directory, card)

    return fit_tokens(model, examples, config, directory, save=save, name="the verifier", progress=progress)


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
    config = with_layout(config, model.base_model)
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
    with sharing_rows(model.base_model, config.layout):
        log = run_updates(
            optimiser,
            examples,
            lambda microbatch, tokens: optimiser.called(microbatch) / tokens,
            config,
            directory,
            processes=processes,
            terms=lambda example: len(example.positions),
            progress=progress,
        )
    model.eval()
    finish(directory, config, log, processes, partial(save, full_state(model)))
    return log


class TokenLoss(torch.nn.Module):
    """Cross-entropy of the tokens at the examples' positions, in nats, summed; the others are only read."""

    def __init__(self, model: PreTrainedModel, config: SFTConfig) -> None:
        super().__init__()
        self.reader, self._config = TokenReader(model), config

    def forward(self, parts: Sequence[Example]) -> torch.Tensor:
        """Of some examples, with gradient."""
        model = self.reader.model
        batch = lay_out(parts, self._config.layout, model.device, trunk=model.base_model).predicting()
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=self._config.bf16):
            logprobs: torch.Tensor = self.reader(batch)[0]
        return -logprobs.sum()


def longest_example(model: PreTrainedModel, max_length: int | None = None) -> int:
    """Tokens that ``model`` can read, very many where it does not say; or ``max_length`` if that is less."""
    context = context_length(model)
    return min(context, max_length or context)


def _check_examples(model: PreTrainedModel, examples: Sequence[Example]) -> None:
    if not examples:
        raise TrainingError("no examples to train on")
    limit = longest_example(model)
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
    with reading_checkpoint(f"{name}: the configuration cannot be read"):
        config = AutoConfig.from_pretrained(checkpoint_directory(name), trust_remote_code=False)
        has = int(config.get_text_config().vocab_size)
    needs = model.get_input_embeddings().weight.shape[0]
    if has != needs:
        raise TrainingError(
            f"the model has embeddings of {needs} tokens, its base {name} of {has}, and an adapter holds "
            "none: save the model and load it from there, or train without 'lora'"
        )


class Demonstration(Record):
    """A trace, and what of it is learned."""

    trace: Trace
    steps: tuple[int, ...]
    """Numbers of the steps that are learned."""
    end: bool
    """Whether it is learned too that the solution ends after its last step. A chat trace's messages end by
    their template, each with its step."""

    @property
    def decisions(self) -> int:
        """What was demonstrated: steps, and the end."""
        return len(self.steps) + self.end


def demonstrate(trace: Trace, steps: Collection[int] | None = None) -> Demonstration:
    """``trace`` and the steps of it to learn (all without ``steps``).

    Its end is learned together with its last step, unless it was cut off.
    """
    chosen = range(len(trace.steps)) if steps is None else sorted(set(steps))
    complete = trace.text is not None and not trace.cut_off
    return Demonstration(trace=trace, steps=tuple(chosen), end=complete and len(trace.steps) - 1 in chosen)


def good_steps(item: LabelledTrace, *, threshold: float = 0.5) -> frozenset[int]:
    """Steps that all their labels call good: correctness +1, value > ``threshold``, advantage > 0.

    A neutral step is not good, and one without a label, or with unknown ones alone, neither.
    """
    rule = LabelRule(neutral="bad", good_above=threshold)
    verdicts: dict[int, list[bool]] = {}
    for label in item.labels:
        good = improves(label) if label.kind == "advantage" else rule.good(label)
        if good is not None and label.step < len(item.trace.steps):
            verdicts.setdefault(label.step, []).append(good)
    return frozenset(step for step, of_step in verdicts.items() if all(of_step))


def build_cloning_examples(
    tokenizer: PreTrainedTokenizerBase,
    prompt: PromptFormat,
    problems: Mapping[str, Problem],
    demonstrations: Sequence[Demonstration],
    *,
    max_length: int,
) -> ExampleSet:
    """Encode demonstrations; an example's ``positions`` are the tokens that are learned.

    ``prompt`` is how the policy will be asked; ``problems`` go by their ids. A token belongs to the step that
    it begins in. Demonstrations without a problem or a step, and steps beyond ``max_length`` tokens, are
    dropped and counted. Raises ``TrainingError`` if nothing is left, saying why, and for a tokenizer without
    an end-of-sequence token.
    """
    if tokenizer.eos_token_id is None:
        raise TrainingError("the tokenizer lacks an end-of-sequence token: a policy could not learn to stop")
    drops = DropCounter()
    usable = []
    for demonstration in demonstrations:
        if demonstration.trace.problem_id not in problems:
            drops.add("traces without their problem", demonstration.trace.id)
        elif not demonstration.trace.steps or not demonstration.decisions:
            drops.add("traces without a step to learn", demonstration.trace.id)
        else:
            usable.append(demonstration)
    encoding = Encoding(**vars(prompt), max_length=max(8, max_length))
    items = [
        ProblemTrace(problem=problems[demonstration.trace.problem_id], trace=demonstration.trace)
        for demonstration in usable
    ]
    examples = []
    for demonstration, encoded in zip(usable, encode_traces(tokenizer, encoding, items), strict=True):
        example = _example(demonstration, encoded, tokenizer.eos_token_id, max_length, drops)
        if example:
            examples.append(example)
    return drops.example_set(examples)


def clone_steps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    config: SFTConfig,
    directory: Path,
    *,
    progress: Progress | None = None,
) -> TrainingLog:
    """Train ``model`` on the examples of :func:`build_cloning_examples`, and save it to ``directory``.

    The rest is as in :func:`fit_tokens`; an adapter's base has to stay where it was loaded from. Raises
    ``TrainingError`` for a model that is an adapter already, too.
    """
    if has_adapter(model):
        raise TrainingError(
            "the policy is an adapter on its base already: merge it into the base (peft's merge_and_unload) "
            "and start from the result"
        )
    return fit_tokens(
        model,
        examples,
        config,
        directory,
        save=lambda state: save_causal(model, tokenizer, directory, state=state),
        name="the cloned policy",
        progress=progress,
    )


def _example(
    one: Demonstration, encoded: EncodedTrace, end: int, max_length: int, drops: DropCounter
) -> Example | None:
    """Ids and learned positions; ``None`` (counted) if nothing of it fits."""
    ids = list(encoded.ids[:max_length])
    positions: list[int] = []
    for step in one.steps:
        first, stop = encoded.written[step]
        if stop > len(ids):
            drops.add("steps beyond the longest example", one.trace.id)
        else:
            positions += range(max(1, first), stop)  # nothing comes before a first token
    if one.end:
        complete = encoded.written[-1][1] <= len(ids) and not encoded.truncated_steps
        if complete and ids[-1] != end:
            ids.append(end)  # a tokenizer may have put it there itself
        if complete and len(ids) <= max_length:
            positions.append(len(ids) - 1)
        else:
            drops.add("ends beyond the longest example", one.trace.id)
    if not positions:
        drops.add("traces without a step that fits", one.trace.id)
        return None
    return Example(
        trace_id=one.trace.id,
        ids=tuple(ids[: positions[-1] + 1]),  # what comes after the last learned token is never read
        positions=tuple(positions),
        targets=(1.0,) * len(positions),
    )
