"""Verifiers that write: a critique of every step, then the odds of yes at a forced question.

ThinkPRM (Khalifa et al., arXiv 2504.16828) and GenRM (Zhang et al., arXiv 2408.15240).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.concurrency import run_sync
from surefoot.errors import ScoreError
from surefoot.models.card import GENERATIVE, VERIFIER_FORMAT, CheckpointCard, read_json, verified_card
from surefoot.models.kinds.verifier_format import Critique, CritiqueError, VerifierFormat
from surefoot.models.kinds.yes_no import TransformersYesNo, YesNoReader
from surefoot.models.lora import load_adapted
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.prompts import render_chat, special_tokens
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Message, StepScores, Trace, Usage

Prompt = str | tuple[Message, ...]


@dataclass(kw_only=True)
class VerifierOutput:
    """What a verifier says of one trace."""

    steps: int
    chains: list[tuple[Critique, float]] = field(default_factory=list)
    """Each valid critique, with P(yes) / (P(yes) + P(no)) at the question after it."""
    invalid: Counter[str] = field(default_factory=Counter)
    """Chains that gave no verdicts or no odds, by reason. They are never scored."""
    usage: Usage = field(default_factory=Usage)

    @property
    def scores(self) -> tuple[float | None, ...]:
        """One score a step; see :class:`surefoot.models.kinds.generative.GenerativeVerifier`."""
        if not self.chains:
            return (None,) * self.steps
        firsts = [self.steps if all(c.verdicts) else len(c.verdicts) - 1 for c, _ in self.chains]
        shares = (sum(first > step for first in firsts) / len(firsts) for step in range(self.steps - 1))
        return (*shares, sum(score for _, score in self.chains) / len(self.chains))

    def finished(self, result: SampleResult, requested: int) -> list[str]:
        """Completions that ended; the others are counted."""
        self.usage += result.usage.by_verifier
        if missing := requested - len(result.completions):
            self.invalid["request failed" + (f": {result.error}" if result.error else "")] += missing
        texts = [c.text for c in result.completions if not c.cut_off]
        if cut := len(result.completions) - len(texts):
            self.invalid["cut off at max_tokens"] += cut
        return texts


class GenerativeVerifier(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that lets ``policy`` write critiques.

    **Scores.** The last step's score is the solution's: the mean over the chains of P(yes) / (P(yes) + P(no))
    at the forced question. The score of an earlier step is the share of chains that call no step up to and
    with it incorrect: in one chain, a step with verdict *correct* gets 1, the first incorrect step 0, and the
    steps after it, which the chain does not look at, 0 as well, for the prefix that they end is wrong. So the
    rule ``last`` gives ThinkPRM's score, and the first step below ½ is the first error that most chains name.

    **Scaling.** ``chains`` are sampled in parallel and averaged (ThinkPRM: temperature 0.6).

    **Failures.** A chain that is cut off, lacks a verdict on some step, or lacks odds does not count: it is
    recorded in ``invalid`` by reason, over all calls, and never scored. A trace without a valid chain has no
    scores, and the reason says why. Other boxes, and verdicts on steps that are not there, do no harm.

    **Prompt.** Special tokens in the problem or a step, of the tokenizer where it is in this process and of
    common chat templates, are broken by a space, so that a solution cannot end its message and speak for
    another (:meth:`surefoot.models.kinds.verifier_format.VerifierFormat.prompt`).

    **Cost** counts as verifier tokens, the question's reading included; equal prompts are verified once.
    """

    def __init__(
        self,
        policy: Policy,
        reader: YesNoReader,
        *,
        form: VerifierFormat | None = None,
        chains: int = 1,
        sampling: Sampling | None = None,
        seed: int = 0,
        tokenizer: PreTrainedTokenizerBase | None = None,
        card: CheckpointCard | None = None,
    ) -> None:
        """``sampling`` defaults to 8192 tokens, greedy for one chain and temperature 0.6 for more.

        With ``tokenizer`` a chat format is rendered here and sent as text (to a server in ``completions``
        mode, which must not add special tokens). Raises ``ScoreError`` for fewer than one
        chain, or several at temperature 0.
        """
        self.policy, self.reader, self.form = policy, reader, form or VerifierFormat()
        self.chains, self.seed, self.tokenizer = chains, seed, tokenizer
        sampling = sampling or Sampling(temperature=0.6 if chains > 1 else 0.0, max_tokens=8192)
        self.sampling = replace(sampling, stop=self.form.stop)
        if chains < 1:
            raise ScoreError(f"chains must be at least 1, not {chains}")
        if chains > 1 and self.sampling.temperature == 0:
            raise ScoreError(f"{chains} chains at temperature 0 would be equal; raise the temperature")
        renderer = tokenizer or getattr(policy, "tokenizer", None)  # a policy in this process has one
        self._special = special_tokens(renderer)
        self.card = card or CheckpointCard(
            family=GENERATIVE,
            kind="prm",
            aggregation="last",
            score_means="correctness",
            label_source="unknown",
            base=policy.name,
        )
        self.name = policy.name
        self.invalid: Counter[str] = Counter()

    @classmethod
    def of_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        form: VerifierFormat,
        card: CheckpointCard,
        batch_tokens: int = 16_384,
        chains: int = 1,
        sampling: Sampling | None = None,
    ) -> Self:
        """On a model in this process. Raises ``ScoreError`` if no spelling of yes or no is one token."""
        policy = TransformersPolicy(model, tokenizer, name=name, batch_size=64)
        reader = TransformersYesNo(
            model, tokenizer, question=form.closing, yes=form.yes, no=form.no, batch_tokens=batch_tokens
        )
        return cls(policy, reader, form=form, chains=chains, sampling=sampling, card=card)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in order, one record each; messages have none.

        Raises ``ScoreError`` for a trace without steps. In a running event loop, ``await criticise(items)``
        does not block it.
        """
        return run_sync(self.criticise(items))

    async def criticise(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """As :meth:`score_traces`."""
        outputs = iter(await self.verify([item for item in items if item.trace.text is not None]))
        reason = "a model that writes critiques reads solutions that are text; use a judge for messages"
        return [
            StepScores.unscored(item.trace, self.name, reason)
            if item.trace.text is None
            else self._scores(item.trace, next(outputs))
            for item in items
        ]

    def _scores(self, trace: Trace, output: VerifierOutput) -> StepScores:
        invalid = ", ".join(f"{count} {reason}" for reason, count in output.invalid.most_common())
        return StepScores.of_model(
            trace_id=trace.id,
            scorer=self.name,
            scores=output.scores,
            unscored_reason=None if output.chains else f"no valid critique: {invalid}",
            usage=output.usage,
        )

    async def verify(self, items: Sequence[ProblemTrace]) -> list[VerifierOutput]:
        """Critiques, verdicts and scores of each item, in order. Raises like :meth:`score_traces`."""
        keys = [(self._prompt(item), len(item.trace.steps)) for item in items]
        outputs = {key: VerifierOutput(steps=key[1]) for key in keys}
        opening = self.form.opening
        requests = [self._request(prompt, opening, n=self.chains) for prompt, _ in outputs]
        results = await self.policy.sample(requests) if requests else []
        drafts: list[tuple[VerifierOutput, Critique, SampleRequest]] = []
        for ((prompt, steps), output), result in zip(outputs.items(), results, strict=True):
            for text in output.finished(result, self.chains):
                try:
                    critique = self.form.read(text, steps)
                except CritiqueError as error:
                    output.invalid[str(error)] += 1
                    continue
                question = self._request(prompt, opening + critique.text + self.form.closing)
                drafts.append((output, critique, question))
        answers = await self.reader.read([question for _, _, question in drafts])
        for (output, critique, _), odds in zip(drafts, answers, strict=True):
            output.usage += odds.usage.by_verifier
            if odds.score is None:
                output.invalid[f"no odds: {odds.reason}"] += 1
            else:
                output.chains.append((critique, odds.score))
        for output in outputs.values():
            self.invalid.update(output.invalid)
        first = {key: number for number, key in reversed(list(enumerate(keys)))}
        return [
            outputs[key] if first[key] == number else replace(outputs[key], usage=Usage())
            for number, key in enumerate(keys)
        ]

    def _prompt(self, item: ProblemTrace) -> Prompt:
        prompt = self.form.prompt(item, self._special)
        if self.tokenizer is None or isinstance(prompt, str):
            return prompt
        return render_chat(self.tokenizer, prompt)

    def _request(self, prompt: Prompt, prefix: str, *, n: int = 1) -> SampleRequest:
        return SampleRequest(prompt=prompt, prefix=prefix, n=n, seed=self.seed, sampling=self.sampling)


def load_verifier(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    loading: Loading = LOADING,
    chains: int = 1,
    sampling: Sampling | None = None,
) -> GenerativeVerifier:
    """Load what :func:`surefoot.training.sft.train_verifier` wrote, as ``loading`` says.

    An adapter's model comes from ``base``, by default from where it was when the adapter was trained. Raises
    ``CheckpointError`` if the directory is not a generative checkpoint of this package, or not whole.
    """
    directory = Path(directory)
    card = verified_card(directory, family=GENERATIVE)
    missing = f"{directory} is not a generative checkpoint: {VERIFIER_FORMAT} is missing"
    form = read_json(directory / VERIFIER_FORMAT, VerifierFormat, missing)
    model, tokenizer = load_adapted(AutoModelForCausalLM, directory, loading, base=base)
    return GenerativeVerifier.of_model(
        model,
        tokenizer,
        name=directory.name,
        form=form,
        card=card,
        chains=chains,
        sampling=sampling,
    )
