"""Step-level behaviour cloning: a language model learns chosen steps of traces, token by token.

The problem and the other steps are context without loss (:class:`Demonstration` says which steps count). So
an expert's step can follow a policy's own, wrong ones (DAgger), and of a solution that goes wrong its good
steps can be learned alone. The result is an ordinary checkpoint of transformers, or an adapter of peft.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.labels import LabelRule, improves
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.engine.causal import save_causal
from surefoot.models.lora import has_adapter
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Record, Trace
from surefoot.training.config import SFTConfig, TrainingLog
from surefoot.training.examples import DropCounter, Example, ExampleSet
from surefoot.training.loop import Progress
from surefoot.training.sft import context_of, fit_tokens


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

    Its end is learned together with its last step, unless it was cut off by a limit of tokens.
    """
    chosen = range(len(trace.steps)) if steps is None else sorted(set(steps))
    complete = trace.text is not None and trace.finish_reason != "length"
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
) -> ExampleSet[Example]:
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
    encoding = Encoding(
        template=prompt.template, chat=prompt.chat, system=prompt.system, max_length=max(8, max_length)
    )
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

    The loss is the mean over the learned tokens of an update. With ``config.lora`` an adapter is trained and
    saved, whose base has to stay where it was loaded from. ``progress`` gets (updates done, updates in all,
    loss). Goes on from ``directory/checkpoint.safetensors`` if there is one. Several processes as in
    :func:`surefoot.training.train`.

    Raises ``TrainingError`` where :func:`surefoot.training.sft.fit_tokens` does, and for a model that is
    an adapter already.
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


def longest_example(model: PreTrainedModel, max_length: int | None = None) -> int:
    """Tokens of the longest example that ``model`` can learn from, or ``max_length`` if that is less."""
    return min(context_of(model), max_length or context_of(model))


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
