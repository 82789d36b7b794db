"""Published reward models that are plain language models: implicit ones, and verifiers that write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.engine.causal import load_causal, require_plain_head
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import chat_text, encode_texts, plain_ids, step_texts, within_context
from surefoot.models.kinds.generative import GenerativeVerifier
from surefoot.models.kinds.implicit import log_ratios
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.prompts import control_tokens
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores
from surefoot.segment.spans import Span

REFERENCE = "Qwen/Qwen2.5-7B-Instruct"
COEFFICIENT = 0.001


class ImplicitModel(CheckpointScorer):
    """EurusPRM-Stage1 and -Stage2, implicit reward models (arXiv 2412.01981, 2502.01456).

    Input: the tokenizer's chat template, without generation prompt, on the question as user and, as
    assistant, ``Step i: …`` for each step, joined by blank lines (the number is added where a step does not
    begin with it). Score of a step: coefficient times the sum, from the first token of the answer on, of log
    p(token) - log p_ref(token). It is a log odds, not a chance, and may be negative. No head is read at a
    position: two language models give log-probabilities, so this is not a step model but a separate scorer.

    How far the sum goes follows the authors' ``eval/processbench.py`` (PRIME-RL/ImplicitPRM): the
    conversation is cut after the step and tokenised with its end of turn and, but for the last step, a blank
    line; as many tokens of the whole conversation count. The sum so takes in the first token or two of the
    next ``Step i:``, none of what the step says.

    Coefficient 0.001 (that script's default and the model card; its shell script says 0.005). The reference
    is Qwen2.5-7B-Instruct in the authors' shell script; other public readers load Qwen2.5-Math-7B-Instruct,
    so give ``reference=`` if you know better. Solution score: minimum (``bon_eval.py``). Never run on the
    real weights.
    """

    CARD: ClassVar = CheckpointCard(
        family="eurus",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True),
        separator="\n\n",
        aggregation="min",
        score_means="value",
        label_source="outcomes (Stage 1), then steps judged by a language model (Stage 2)",
        base="Qwen2.5-Math-7B-Instruct",
    )

    def __init__(
        self, policy: PreTrainedModel, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        for model in (policy, reference):
            require_plain_head(model)
            model.eval().requires_grad_(False)
            if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
                raise CheckpointError(f"{model.name_or_path}: its vocabulary is smaller than the tokenizer's")
        self.policy, self.reference, self.tokenizer = policy, reference, tokenizer
        self.card = within_context(self.CARD, policy, reference)
        self._reserved = control_tokens(tokenizer)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        policy, tokenizer = load_causal(checkpoint.directory, checkpoint.loading)
        reference, _ = load_causal(checkpoint.reference or REFERENCE, checkpoint.loading)
        return cls(policy, reference, tokenizer)

    def scorer(self, *, name: str, batch_tokens: int) -> Self:  # noqa: ARG002
        """The model, which scores itself."""
        self.name = name
        return self

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens of each trace; ``positions`` is the last token that counts to each step's sum.

        Messages are refused. Raises ``ScoreError`` for a trace without steps.
        """
        return encode_texts(
            self._write, self.tokenizer, items, self._reserved, limit=self.card.encoding.max_length
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores of traces that have steps, in order; log odds up to and with each step.

        ``usage.verifier_tokens`` counts the tokens through both models. Steps beyond the context get ``None``
        and a reason. Raises ``ScoreError`` for a trace without steps.
        """
        encoded = self.encode(items)
        records = []
        ratios = log_ratios(self.policy, self.reference, encoded)
        for item, trace, read in zip(items, encoded, ratios, strict=True):
            sums = COEFFICIENT * read.ratios.cumsum(0)
            row = [None if at is None else float(sums[at - read.first]) for at in trace.positions]
            records.append(self._record(item.trace, trace, row, read.tokens))
        return records

    def _write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        """The conversation, with first and last token of each step's share of the sum."""
        numbered = [_numbered(number, step) for number, step in enumerate(step_texts(text, spans), start=1)]
        ids = plain_ids(self.tokenizer, self._conversation(question, numbered))
        ends = []
        for count in range(len(numbered) + 1):
            cut = self._conversation(question, numbered[:count]).strip()
            if 0 < count < len(numbered):
                cut += "\n\n"
            ends.append(min(len(plain_ids(self.tokenizer, cut)) - 1, len(ids) - 1))
        # with no step, all but the end of turn is prompt: the answer's first token is counted first
        starts = (ends[0], *(end + 1 for end in ends[1:-1]))
        return EncodedTrace(ids=tuple(ids), positions=tuple(ends[1:]), starts=starts)

    def _conversation(self, question: str, steps: list[str]) -> str:
        return chat_text(self.tokenizer, ("user", question), ("assistant", "\n\n".join(steps)))


def _numbered(number: int, step: str) -> str:
    return step if step.startswith(f"Step {number}:") else f"Step {number}: {step}"


class ThinkPRM:
    """ThinkPRM-1.5B, -7B and -14B, verifiers that write a critique (arXiv 2504.16828).

    Input: the tokenizer's chat template with generation prompt on one user message with problem and numbered
    steps, then ``\\nLet's verify step by step:``. The model writes a verdict on each step; then the odds of "
    Yes" against " No" are read after ``</think>\\nIs the solution correct?``. Texts and rules are the
    defaults of :class:`surefoot.models.kinds.verifier_format.VerifierFormat`; the scorer is
    :class:`surefoot.models.kinds.generative.GenerativeVerifier`: the last step's is the solution's. One
    critique is written greedily, several at temperature 0.6.

    Built from the authors' repository (``utils/helper.py``: the prompt; ``prm/__init__.py`` and their later
    class: headings, " Yes" and " No") and the model card (its transcript). vLLM puts a second beginning of
    text before the template's where the authors pass it the prompt as text; here there is one. Never run on
    the real weights.
    """

    CARD = CheckpointCard(
        family="thinkprm",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True),
        aggregation="last",
        score_means="correctness",
        label_source="critiques by QwQ-32B-Preview that agree with PRM800K",
        base="DeepSeek-R1-Distill-Qwen",
    )

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises ``CheckpointError`` without a chat template."""
        if not tokenizer.chat_template:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: the tokenizer lacks a chat template; family 'thinkprm' needs it"
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.card = within_context(self.CARD, model)

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        """Raises ``CheckpointError``."""
        return cls(*load_causal(checkpoint.directory, checkpoint.loading))

    def scorer(self, *, name: str, batch_tokens: int, chains: int) -> GenerativeVerifier:
        """What scores with this model. Raises ``ScoreError`` if " Yes" or " No" is not one token."""
        return GenerativeVerifier.of_model(
            self.model,
            self.tokenizer,
            name=name,
            form=VerifierFormat(),
            card=self.card,
            batch_tokens=batch_tokens,
            chains=chains,
        )
