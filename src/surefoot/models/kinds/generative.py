"""Verifiers that write: a critique of every step, then the odds of yes at a forced question.

ThinkPRM (Khalifa et al., arXiv 2504.16828) and GenRM (Zhang et al., arXiv 2408.15240).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import ScoreError
from surefoot.io import write_json
from surefoot.models.card import CheckpointCard, read_json, verified_card, write_card
from surefoot.models.engine.causal import load_causal, save_causal
from surefoot.models.kinds.verifier_format import Critique, CritiqueError, VerifierFormat
from surefoot.models.kinds.yes_no import TransformersYesNo, YesNoReader
from surefoot.models.lora import base_of, load_adapter
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.control_tokens import special_tokens
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.prompts import render_chat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Message, StepScores, Trace, Usage

FAMILY = "generative"
FORMAT = "verifier.json"

Prompt = str | tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class VerificationChain:
    """One valid critique with its answer to the question."""

    text: str
    """Up to the last verdict."""
    verdicts: tuple[bool, ...]
    """One per step up to the first incorrect one."""
    score: float
    """P(yes) / (P(yes) + P(no)), in [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class VerifierOutput:
    """What a verifier says of one trace."""

    steps: int
    chains: tuple[VerificationChain, ...]
    invalid: Counter[str]
    """Chains that gave no verdicts or no odds, by reason. They are never scored."""
    usage: Usage = field(default_factory=Usage)

    @property
    def solution(self) -> float | None:
        """Mean score of the chains; ``None`` if none is valid."""
        if not self.chains:
            return None
        return sum(chain.score for chain in self.chains) / len(self.chains)

    @property
    def scores(self) -> tuple[float | None, ...]:
        """One score a step; see :class:`surefoot.models.kinds.generative.GenerativeVerifier`."""
        if not self.chains:
            return (None,) * self.steps
        firsts = [len(c.verdicts) - 1 if False in c.verdicts else self.steps for c in self.chains]
        shares = (sum(first > step for first in firsts) / len(firsts) for step in range(self.steps - 1))
        return (*shares, self.solution)


class GenerativeVerifier(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that lets ``policy`` write critiques.

    **Scores.** The last step's score is the solution's: the mean over the chains of P(yes) / (P(yes) + P(no))
    at the forced question. The score of an earlier step is the share of chains that call no step up to and
    with it incorrect: in one chain, a step with verdict *correct* gets 1, the first incorrect step 0, and the
    steps after it, which the chain does not look at, 0 as well, for the prefix that they end is wrong. So the
    rule ``last`` gives ThinkPRM's score, and the first step below ½ is the first error that most chains name.

    **Scaling.** ``chains`` are sampled in parallel and averaged (ThinkPRM: temperature 0.6).

    **Failures.** A chain that is cut off, has no verdict on some step, or no odds does not count: it is
    recorded in ``invalid`` by reason, over all calls, and never scored. A trace without a valid chain has no
    scores, and the reason says why. Other boxes, and verdicts on steps that are not there, do no harm.

    **Prompt.** Special tokens in the problem or a step, of the tokenizer where it is in this process and of
    common chat templates, are broken by a space, so that a solution cannot end its message and speak for
    another (:meth:`surefoot.models.kinds.verifier_format.VerifierFormat.prompt`).

    **Cost** counts as verifier tokens, the question's reading included; equal prompts are verified once.
    """

    writes = True

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
            family=FAMILY,
            kind="prm",
            aggregation="last",
            score_means="correctness",
            label_source="unknown",
            base=policy.name,
        )
        self.name = policy.name
        self.invalid: Counter[str] = Counter()

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in order, one record each; messages have none.

        Raises ``ScoreError`` for a trace without steps.

        The policy is asynchronous: this runs it in a thread with a separate event loop, so that it can be
        called with or without a running loop. In a loop, ``await verify(items)`` does not block it.
        """
        texts = [item for item in items if item.trace.text is not None]
        with ThreadPoolExecutor(1) as thread:
            verifications = iter(thread.submit(asyncio.run, self.verify(texts)).result())
        return [
            self._unread(item.trace)
            if item.trace.text is None
            else self._record(item.trace, next(verifications))
            for item in items
        ]

    def _record(self, trace: Trace, verification: VerifierOutput) -> StepScores:
        return StepScores.of_model(
            trace_id=trace.id,
            scorer=self.name,
            scores=verification.scores,
            unscored_reason=None if verification.chains else _reason(verification.invalid),
            usage=verification.usage,
        )

    def _unread(self, trace: Trace) -> StepScores:
        reason = "a generative verifier reads solutions that are text; use a judge for messages"
        return StepScores.unscored(trace, self.name, reason)

    async def verify(self, items: Sequence[ProblemTrace]) -> list[VerifierOutput]:
        """Critiques, verdicts and scores of each item, in order. Raises like :meth:`score_traces`."""
        rows: dict[tuple[Prompt, int], list[int]] = {}
        for number, item in enumerate(items):
            key = (self._prompt(item), len(item.trace.steps))
            rows.setdefault(key, []).append(number)
        jobs = [_Job(prompt, steps, number) for number, (prompt, steps) in enumerate(rows)]
        drafts = await self._write(jobs)
        chains = await self._answer(jobs, drafts)
        results: dict[int, VerifierOutput] = {}
        for job, numbers in zip(jobs, rows.values(), strict=True):
            self.invalid.update(job.invalid)
            done = VerifierOutput(
                steps=job.steps, chains=tuple(chains[job.number]), invalid=job.invalid, usage=job.usage
            )
            results |= {number: replace(done, usage=Usage()) for number in numbers}
            results[numbers[0]] = done
        return [results[number] for number in range(len(items))]

    def _prompt(self, item: ProblemTrace) -> Prompt:
        prompt = self.form.prompt(item, self._special)
        if self.tokenizer is None or isinstance(prompt, str):
            return prompt
        return render_chat(self.tokenizer, prompt)

    async def _write(self, jobs: list[_Job]) -> list[_Draft]:
        """All valid critiques; the others are counted in their job."""
        requests = [self._request(job.prompt, self.form.opening, n=self.chains) for job in jobs]
        samples = await self.policy.sample(requests) if requests else []
        drafts = []
        for job, result in zip(jobs, samples, strict=True):
            for text in job.texts(result, self.chains):
                try:
                    drafts.append(_Draft(job, self.form.opening, self.form.read(text, job.steps)))
                except CritiqueError as error:
                    job.invalid[str(error)] += 1
        return drafts

    async def _answer(self, jobs: list[_Job], drafts: list[_Draft]) -> list[list[VerificationChain]]:
        """Ask the question after each critique; one list of chains a job."""
        requests = [self._request(draft.job.prompt, draft.whole + self.form.closing) for draft in drafts]
        chains: list[list[VerificationChain]] = [[] for _ in jobs]
        for draft, odds in zip(drafts, await self.reader.read(requests), strict=True):
            draft.job.usage += Usage(verifier_tokens=odds.usage.tokens, calls=odds.usage.calls)
            if odds.score is None:
                draft.job.invalid[f"no odds: {odds.reason}"] += 1
                continue
            chain = VerificationChain(text=draft.whole, verdicts=draft.critique.verdicts, score=odds.score)
            chains[draft.job.number].append(chain)
        return chains

    def _request(self, prompt: Prompt, prefix: str, *, n: int = 1) -> SampleRequest:
        return SampleRequest(prompt=prompt, prefix=prefix, n=n, seed=self.seed, sampling=self.sampling)


@dataclass(frozen=True, kw_only=True)
class VerifierCheckpoint:
    """A language model that criticises, and how it is asked."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    form: VerifierFormat
    card: CheckpointCard

    def save(self, directory: Path, *, state: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write weights, tokenizer, ``verifier.json`` and ``surefoot.json``; of an adapter its weights alone.

        ``state`` are the weights where the model holds shards of them.

        ``surefoot.json`` comes last and atomically: a directory that has it is complete.
        """
        save_causal(self.model, self.tokenizer, directory, state=state)
        write_json(directory / FORMAT, self.form.model_dump())
        write_card(directory, self.card)


def read_verifier(
    directory: Path,
    *,
    base: str | Path | None = None,
    loading: Loading = LOADING,
    trust_remote_code: bool = False,
) -> VerifierCheckpoint:
    """What :meth:`VerifierCheckpoint.save` wrote; ``base`` is where an adapter's model is now.

    Raises ``CheckpointError`` naming the missing or bad file.
    """
    card = verified_card(directory, family=FAMILY)
    missing = f"{directory} is not a generative checkpoint: {FORMAT} is missing"
    form = read_json(directory / FORMAT, VerifierFormat, missing)
    stated = base_of(directory)
    if stated is None:
        model, tokenizer = load_causal(directory, loading, trust_remote_code=trust_remote_code)
    else:
        model, _ = load_causal(base or stated, loading, trust_remote_code=trust_remote_code)
        load_adapter(model, directory)
        loading.cast(model)
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code)
    return VerifierCheckpoint(model=model.eval(), tokenizer=tokenizer, form=form, card=card)


def load_verifier(
    directory: str | Path,
    *,
    base: str | Path | None = None,
    loading: Loading = LOADING,
    trust_remote_code: bool = False,
    batch_size: int = 64,
    chains: int = 1,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> GenerativeVerifier:
    """Load what :func:`surefoot.training.sft.train_verifier` wrote, as ``loading`` says.

    An adapter's model comes from ``base``, by default from where it was when the adapter was trained. Raises
    ``CheckpointError`` if the directory is not a generative checkpoint of this package, or not whole.
    """
    checkpoint = read_verifier(
        Path(directory), base=base, loading=loading, trust_remote_code=trust_remote_code
    )
    form, model = checkpoint.form, checkpoint.model
    policy = TransformersPolicy(model, checkpoint.tokenizer, name=Path(directory).name, batch_size=batch_size)
    return GenerativeVerifier(
        policy,
        TransformersYesNo(model, checkpoint.tokenizer, question=form.closing, yes=form.yes, no=form.no),
        form=form,
        chains=chains,
        sampling=sampling,
        seed=seed,
        card=checkpoint.card,
    )


def _reason(invalid: Counter[str]) -> str:
    return "no valid critique: " + ", ".join(f"{count} {reason}" for reason, count in invalid.most_common())


class _Job:
    """One distinct prompt."""

    def __init__(self, prompt: Prompt, steps: int, number: int) -> None:
        self.prompt, self.steps, self.number = prompt, steps, number
        self.invalid: Counter[str] = Counter()
        self.usage = Usage()

    def texts(self, result: SampleResult, requested: int) -> list[str]:
        """Finished completions; the others are counted."""
        self.usage += Usage(verifier_tokens=result.usage.tokens, calls=result.usage.calls)
        if missing := requested - len(result.completions):
            self.invalid["request failed" + (f": {result.error}" if result.error else "")] += missing
        finished = []
        for completion in result.completions:
            if completion.finish_reason == "length":
                self.invalid["cut off at max_tokens"] += 1
            else:
                finished.append(completion.text)
        return finished


@dataclass(frozen=True)
class _Draft:
    """A critique that waits for the question's answer."""

    job: _Job
    opening: str
    critique: Critique

    @property
    def whole(self) -> str:
        """The text up to the last verdict."""
        return self.opening + self.critique.text
