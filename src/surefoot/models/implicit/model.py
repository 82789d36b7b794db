"""The model: log-ratios of two language models as step rewards, and these as scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.causal import load_causal, read_logprobs, require_plain_head
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.implicit.checkpoint import FAMILY, ImplicitSettings, read_checkpoint, write_checkpoint
from surefoot.models.implicit.rewards import MEANING, ImplicitRewards, Read, per_step, response_of, scores_of
from surefoot.models.reference import Reference
from surefoot.models.scorer import pasted
from surefoot.protocols import ProblemTrace, Segmenter
from surefoot.records import Problem, StepScores, Usage
from surefoot.scores import aggregate


class ImplicitPRM:
    """A :class:`surefoot.protocols.StepScorer` from a causal language model and a reference.

    The tokens of a step are those after the last visible token of the step before it, up to its own; messages
    of tools and users between the steps of an agent's run do not count. Rewards are log odds; a score is put
    into [0, 1] by the sigmoid, which keeps every order and every minimum:

    - ``read="step"``: sigmoid of the step's reward. 1/2 = the step changes nothing. It means an *advantage*,
      and a trace's score is the minimum, as in the paper.
    - ``read="prefix"``: sigmoid of the sum up to the step. It means a *value*; the last one is the very
      probability of a right outcome that training fits.

    Without a reference the uniform distribution stands in: a reward then grows with every token likelier than
    chance, so longer texts score higher unless ``beta`` is small and training corrects for it.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        card: CheckpointCard,
        settings: ImplicitSettings,
        *,
        reference: PreTrainedModel | None,
        cache: Path | None = None,
        name: str = FAMILY,
    ) -> None:
        if card.encoding.marker is not None:
            raise CheckpointError("'marker' is set: implicit rewards are of the tokens as they were written")
        require_plain_head(policy)
        if reference is not None:
            require_plain_head(reference)
            reference.eval().requires_grad_(False)
        self.policy, self.tokenizer, self.card, self.settings = policy, tokenizer, card, settings
        self.name = name
        vocabulary = policy.get_output_embeddings().weight.shape[0]
        self.reference = Reference(reference, vocabulary=vocabulary, directory=cache)

    @classmethod
    def initialise(
        cls,
        base: str | Path,
        *,
        reference: str | Path | None = "base",
        beta: float = 0.05,
        read: Read = "step",
        encoding: Encoding | None = None,
        cache: Path | None = None,
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> ImplicitPRM:
        """A new model that starts as ``base``; every reward is 0 if that is the ``reference`` too.

        ``cache`` is a directory that keeps the reference's log-probabilities (:class:`Reference`). Raises
        ``CheckpointError`` for a checkpoint that cannot be loaded or does not fit.
        """
        policy, tokenizer = load_causal(base, dtype=dtype, trust_remote_code=trust_remote_code)
        named = base if reference == "base" else reference
        other = None
        if named is not None:
            other, _ = load_causal(named, dtype=dtype, trust_remote_code=trust_remote_code)
        return cls.assemble(
            policy,
            tokenizer,
            reference=other,
            reference_name=None if named is None else str(named),
            base=str(base),
            beta=beta,
            read=read,
            encoding=encoding,
            cache=cache,
        )

    @classmethod
    def assemble(
        cls,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        reference: PreTrainedModel | None,
        reference_name: str | None,
        base: str,
        beta: float = 0.05,
        read: Read = "step",
        encoding: Encoding | None = None,
        cache: Path | None = None,
    ) -> ImplicitPRM:
        """:meth:`initialise` from models that are loaded; the names are noted in the checkpoint."""
        encoding = encoding or Encoding()
        limit = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        if limit and encoding.max_length > limit:
            encoding = encoding.model_copy(update={"max_length": limit})
        meaning, aggregation = MEANING[read]
        card = CheckpointCard(
            family=FAMILY,
            kind="prm",
            encoding=encoding,
            aggregation=aggregation,
            score_means=meaning,
            label_source="outcome",
            base=base,
        )
        settings = ImplicitSettings(beta=beta, read=read, reference=reference_name)
        return cls(policy, tokenizer, card, settings, reference=reference, cache=cache)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        reference: str | Path | None = None,
        cache: Path | None = None,
        trust_remote_code: bool = False,
    ) -> ImplicitPRM:
        """Load what :meth:`save` wrote; ``reference`` is where the reference is now, if it has moved.

        Raises ``CheckpointError`` naming the missing or bad file, or if the reference has other weights than
        the one that the checkpoint was trained against.
        """
        stored = read_checkpoint(Path(directory), reference=reference, trust_remote_code=trust_remote_code)
        model = cls(
            stored.policy.eval(),
            stored.tokenizer,
            stored.card,
            stored.settings,
            reference=stored.reference,
            cache=cache,
            name=Path(directory).name,
        )
        stored.require_reference(model.reference.fingerprint)
        return model

    def save(self, directory: Path, *, with_reference: bool = True) -> None:
        """Write model, tokenizer, ``implicit.json`` and, last, ``surefoot.json``.

        The reference goes into ``reference/``, or with ``with_reference=False`` only its name is noted.
        """
        write_checkpoint(
            directory,
            policy=self.policy,
            tokenizer=self.tokenizer,
            card=self.card,
            settings=self.settings,
            reference=self.reference,
            with_reference=with_reference,
        )

    def to(self, device: str | torch.device) -> ImplicitPRM:
        """Move model and reference."""
        self.policy.to(device)
        if self.reference.model is not None:
            self.reference.model.to(device)
        return self

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens as the checkpoint's card describes them. Raises ``ScoreError``."""
        return encode_traces(self.tokenizer, self.card.encoding, items)

    def rewards(self, items: Sequence[ProblemTrace]) -> list[ImplicitRewards]:
        """Step rewards, one record a trace, in order; common beginnings are read once.

        Raises ``ScoreError`` for a trace without steps.
        """
        self.policy.eval()
        encoded = self.encode(items)
        responses = [response_of(trace) for trace in encoded]
        read = [response for response in responses if response is not None]
        mine, cost = read_logprobs(self.policy, [ids for ids, _ in read], [first for _, first in read])
        theirs, more = self.reference.logprobs(read)
        ratios = iter(
            (self.settings.beta * (own.double() - other.double()), a + b)
            for own, other, a, b in zip(mine, theirs, cost, more, strict=True)
        )
        found = []
        for trace, response in zip(encoded, responses, strict=True):
            ratio, tokens = (torch.zeros(0), 0) if response is None else next(ratios)
            first = 0 if response is None else response[1]
            found.append(ImplicitRewards(steps=per_step(trace, ratio, first), tokens=tokens))
        return found

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in [0, 1], one record a trace, in order; see the class for what they mean.

        Steps beyond the context get ``None`` and a reason. Raises ``ScoreError`` for a trace without steps.
        """
        return [self._record(item, found) for item, found in zip(items, self.rewards(items), strict=True)]

    def score(
        self, problem: Problem | str, solutions: Sequence[str], *, segmenter: Segmenter | None = None
    ) -> list[StepScores]:
        """Score pasted solutions of one problem, as :meth:`surefoot.models.scorer.Scorer.score` does."""
        return self.score_traces(pasted(problem, solutions, segmenter))

    def aggregate(self, scores: StepScores) -> float:
        """One number for a whole trace, by the checkpoint's own rule."""
        return aggregate(scores.scores, self.card.aggregation)

    def _record(self, item: ProblemTrace, rewards: ImplicitRewards) -> StepScores:
        cut_off = sum(reward is None for reward in rewards.steps)
        limit = self.card.encoding.max_length
        reason = f"{cut_off} steps lie beyond the model's context of {limit} tokens" if cut_off else None
        return StepScores(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=scores_of(rewards.steps, self.settings.read),
            unscored_reason=reason,
            usage=Usage(verifier_tokens=rewards.tokens, calls=1),
        )
