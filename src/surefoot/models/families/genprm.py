"""GenPRM-1.5B, -7B, -14B and -32B, which criticise a solution paragraph by paragraph (arXiv 2504.00891).

Input: the tokenizer's chat template, without generation prompt and without the end of turn after the last
message, on ``SYSTEM``, then for each step a user message (the first begins with ``Question: …``) and, as
assistant, what the model wrote on it. After the newest user message comes ``ANALYSIS``; the model writes on
up to ``</analyze>``, and after ``JUDGEMENT`` its ``{Yes}`` or ``{No}``. Score of a step: P(Yes) / (P(Yes) +
P(No)) at that word. With several ``chains`` it is the mean over so many critiques of the step; the first of
them is the rest of the conversation.

This is the authors' ``genprm_inference.py`` with ``analyze`` and without ``verify`` and ``execute``: in
between, their full method lets the model write Python and runs it, and this package runs no code of a
model. A step without a judgement is unscored here (theirs: 0.5). They sample at temperature 0.6, top-p 0.95
and top-k 20; top-k is not offered. Solution score: minimum of the steps, the package's default; they name
none. Never run on the real weights.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from surefoot.errors import ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.families.published import WritingModel, plain_solution, step_texts
from surefoot.models.kinds.generative import WritingScorer
from surefoot.models.kinds.yes_no import TransformersYesNo, YesNoReader
from surefoot.policies.control_tokens import ControlTokens, special_tokens
from surefoot.policies.prompts import render_chat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Message, StepScores, Usage

SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
)
ANALYSIS = "<analyze>\nLet's analyze the Paragraph {number} step by step: "
ANALYSIS_END = "</analyze>\n"
JUDGEMENT = "<output>\n**Judgement**: $\\boxed"
JUDGEMENT_END = "</output>\n"
SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=2048)
_TAGS = tuple(f"<{slash}{tag}>" for tag in ("analyze", "verify", "output") for slash in ("", "/"))
_VERDICT = re.compile(r"(Yes|No)\}")


class GenPRM(WritingModel):
    """See the module."""

    CARD = CheckpointCard(
        family="genprm",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True, system=SYSTEM),
        aggregation="min",
        score_means="correctness",
        label_source="relative progress by Monte Carlo, in agreement with critiques by QwQ-32B",
        base="DeepSeek-R1-Distill-Qwen",
    )

    def scorer(self, *, name: str, batch_tokens: int, chains: int) -> GenPRMScorer:
        """What scores with this model. Raises ``ScoreError`` if Yes or No is not one token."""
        reader = TransformersYesNo(
            self.model,
            self.tokenizer,
            question=JUDGEMENT + "{",
            yes=("Yes",),
            no=("No",),
            batch_tokens=batch_tokens,
        )
        policy = TransformersPolicy(self.model, self.tokenizer, name=name, batch_size=64)
        return GenPRMScorer(policy, reader, self.tokenizer, card=self.card, chains=chains)


class GenPRMScorer(WritingScorer):
    """A :class:`surefoot.protocols.StepScorer` by a critique of each step; see the module.

    Steps without a judgement, or beyond the context, are unscored with a reason. All
    tokens are verifier tokens; equal solutions are criticised once.
    """

    def __init__(
        self,
        policy: Policy,
        reader: YesNoReader,
        tokenizer: PreTrainedTokenizerBase,
        *,
        card: CheckpointCard = GenPRM.CARD,
        chains: int = 1,
        sampling: Sampling = SAMPLING,
        seed: int = 0,
    ) -> None:
        """``policy`` and ``reader`` get prompts as text. Raises ``ScoreError`` for fewer than one chain."""
        if chains < 1:
            raise ScoreError(f"chains must be at least 1, not {chains}")
        self.policy, self.reader, self.tokenizer, self.card = policy, reader, tokenizer, card
        self.chains, self.sampling, self.seed, self.name = chains, sampling, seed, policy.name
        self._reserved = ControlTokens({*special_tokens(tokenizer), *_TAGS})
        self._begins = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]

    async def criticise(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores of text traces, in order; equal solutions are criticised and paid once."""
        paragraphs = [self._paragraphs(item) for item in items]
        conversations = {texts: _Conversation(texts) for texts in paragraphs}
        for step in range(max(map(len, paragraphs), default=0)):
            await self._judge(
                step, [c for c in conversations.values() if step < len(c.paragraphs) and not c.broken]
            )
        records = []
        for item, texts in zip(items, paragraphs, strict=True):
            done = conversations[texts]
            missing = [None] * (len(texts) - len(done.scores))
            record = StepScores.of_model(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=(*done.scores, *missing),
                unscored_reason=done.reason(),
                usage=done.usage,
            )
            records.append(record)
            done.usage = Usage()  # paid
        return records

    def _paragraphs(self, item: ProblemTrace) -> tuple[str, ...]:
        """What each user message says."""
        problem, text, spans = plain_solution(item, self._reserved)
        first, *later = step_texts(text, spans)
        return (f"Question: {problem}\n\n{first}", *later)

    async def _judge(self, step: int, live: list[_Conversation]) -> None:
        """One more step of each conversation: analysis, judgement, odds."""
        start = ANALYSIS.format(number=step + 1)
        prompts = [self._prompt(conversation, step) for conversation in live]
        requests = [self._request(prompt, start, ANALYSIS_END, n=self.chains) for prompt in prompts]
        results = await self.policy.sample(requests)
        drafts: list[_Draft] = []
        for conversation, prompt, result in zip(live, prompts, results, strict=True):
            conversation.spend(result.usage)
            if not result.completions:
                conversation.broken = result.error or "the policy wrote nothing"
            for completion in result.completions:
                analysis = completion.text.split(ANALYSIS_END.strip())[0] + ANALYSIS_END
                drafts.append(_Draft(conversation, prompt, start + analysis + JUDGEMENT))
        requests = [self._request(draft.prompt, draft.text, JUDGEMENT_END) for draft in drafts]
        for draft, result in zip(drafts, await self.policy.sample(requests) if drafts else [], strict=True):
            draft.conversation.spend(result.usage)
            draft.judgement = result.completions[0].text if result.completions else ""
        judged = [(draft, match) for draft in drafts if (match := _VERDICT.search(draft.judgement))]
        questions = [
            self._request(draft.prompt, draft.text + draft.judgement[: match.start()])
            for draft, match in judged
        ]
        for (draft, _), odds in zip(judged, await self.reader.read(questions), strict=True):
            draft.conversation.spend(odds.usage)
            draft.score = odds.score
        for conversation in live:
            conversation.take([draft for draft in drafts if draft.conversation is conversation])

    def _prompt(self, one: _Conversation, step: int) -> str:
        """The conversation up to the user's newest message, whose end of turn is left out."""
        messages = [Message(role="system", content=SYSTEM)]
        for number, paragraph in enumerate(one.paragraphs[: step + 1]):
            messages.append(Message(role="user", content=paragraph))
            if number < step:
                messages.append(Message(role="assistant", content=one.critiques[number]))
        text = render_chat(self.tokenizer, messages, generation=False, error=ScoreError)
        if self._begins and self.tokenizer.bos_token:
            text = text.removeprefix(self.tokenizer.bos_token)  # the tokenizer puts it there itself
        end = self.tokenizer.eos_token
        for ending in (f"{end}\n", end) if end else ():
            if text.endswith(ending):
                return text.removesuffix(ending)
        return text

    def _request(self, prompt: str, prefix: str, stop: str = "", *, n: int = 1) -> SampleRequest:
        most = 20 if stop == JUDGEMENT_END else self.sampling.max_tokens
        sampling = replace(self.sampling, stop=(stop,) if stop else (), max_tokens=most)
        return SampleRequest(prompt=prompt, prefix=prefix, n=n, seed=self.seed, sampling=sampling)


@dataclass
class _Conversation:
    """A solution's paragraphs, the critiques written on them, and their scores so far."""

    paragraphs: tuple[str, ...]
    critiques: list[str] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    broken: str | None = None
    """Why no further step can be asked."""
    unjudged: int = 0

    def spend(self, usage: Usage) -> None:
        """Add what a call cost."""
        self.usage += Usage(verifier_tokens=usage.tokens, calls=usage.calls)

    def take(self, drafts: list[_Draft]) -> None:
        """The step's score, the mean of its critiques; the first critique is the reason."""
        if not drafts:
            return
        scores = [draft.score for draft in drafts if draft.score is not None]
        self.scores.append(sum(scores) / len(scores) if scores else None)
        self.critiques.append(drafts[0].text + drafts[0].judgement)
        if not scores:
            self.unjudged += 1

    def reason(self) -> str | None:
        """Why steps are unscored; ``None`` if all are scored."""
        reasons = [f"{self.unjudged} steps whose critique ends without Yes or No"] if self.unjudged else []
        if self.broken:
            reasons.append(f"{len(self.paragraphs) - len(self.scores)} steps not asked: {self.broken}")
        return ", ".join(reasons) or None


@dataclass
class _Draft:
    """One critique of one step: ``text`` ends with ``JUDGEMENT``."""

    conversation: _Conversation
    prompt: str
    text: str
    judgement: str = ""
    score: float | None = None
