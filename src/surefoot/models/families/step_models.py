"""Published PRMs that score text at one token of each step: their inputs, read-out positions and sources."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import (
    PublishedModel,
    Turn,
    chat_text,
    marked,
    one_token,
    plain_ids,
    step_texts,
)
from surefoot.segment import token_positions
from surefoot.segment.spans import Span

TAG = "ки"


class MathShepherd(PublishedModel):
    """Math-Shepherd's Mistral-7B PRM (arXiv 2312.08935).

    Input: ``"{question} {output}"``; in ``output`` each step is followed by `` ки`` (tag 12902), the steps
    joined by line ends. No chat template; the tokenizer adds its beginning of text. The data of its training
    begin every step with ``Step i:``; nothing is added here to steps that do not. Score: at the tag, softmax
    over the logits of ``+`` (648) and ``-`` (387), the first. Only these two rows of the language-model head
    are read.

    Built from the model card's ids as public readers quote them (search-and-learn, OpenR), with ids taken
    from the tokenizer by the card's own recipe, ``encode("+ -")`` and ``encode("ки")``. Solution score:
    minimum of the steps (the paper). A ``ки`` that ends a step is its tag; one that stands as a word inside
    is written ``к и``. Never run on the real weights; whether the hub holds safetensors was not seen,
    ``pytorch_model.bin`` is read too.
    """

    CARD = CheckpointCard(
        family="math-shepherd",
        kind="prm",
        encoding=Encoding(template="{problem} "),
        separator="\n",
        aggregation="min",
        score_means="value",
        label_source="Math-Shepherd: one of eight completions right",
        base="Mistral-7B",
    )
    good = 0
    markers = (TAG,)
    separators = (TAG,)
    tag = f"▁{TAG}"

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        written, tags = question + " ", []
        for step in step_texts(text, spans):
            written += f"{step} {TAG}"
            tags.append((len(written) - len(TAG), len(written)))
            written += "\n"
        tokens = self.tokenizer(written[:-1], return_offsets_mapping=True)
        reads = token_positions(written[:-1], tokens["offset_mapping"], tags, whole=True)
        if None in reads:
            raise ScoreError(f"the tokenizer dropped the step tag {TAG!r}; it is not this family's")
        return EncodedTrace(ids=tuple(tokens["input_ids"]), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        tokenizer, where = checkpoint.tokenizer, checkpoint.directory
        if not tokenizer.is_fast:
            raise CheckpointError(
                f"{where}: the tokenizer lacks character offsets; tokenizer.json is missing"
            )
        return checkpoint.answers(cls.answer_ids(tokenizer))

    @classmethod
    def answer_ids(cls, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
        signs = plain_ids(tokenizer, "+ -")
        if len(signs) != 2:
            raise CheckpointError(
                f"{tokenizer.name_or_path}: '+ -' is {len(signs)} tokens here, not a plus and a minus"
            )
        return signs[0], signs[1]


RLHFLOW_PLACE = "<|reserved_special_token_0|>"


class RLHFlow(PublishedModel):
    """RLHFlow's Llama3.1-8B PRMs, trained on Mistral and on DeepSeek data.

    Input: the tokenizer's chat template on turns: user ``"{question} {step 0}"``, assistant ``+``, user
    ``step 1``, assistant ``+`` and so on, steps without the white space around them. Score: softmax over the
    logits of ``+`` and ``-`` at the token before each assistant's sign, the first. The authors run the model
    once a step; here it runs once a trace, which a causal model cannot tell apart. For that the assistant's
    turns hold ``<|reserved_special_token_0|>`` (128002), whose places are known, until its id is swapped for
    the id of ``+``. Only two rows of the language-model head are read.

    The two checkpoints differ in how their data cut steps (``ки`` and line end, or blank line), not in how
    they are read: cut the traces accordingly. A ``ки`` at a step's end is left out, after the last step too,
    where the authors' script leaves it if no line end follows. Built from the authors'
    ``math-rm/prm_evaluate.py``, whose chat template is the tokenizer's; that the training used the same was
    not verified. Solution score: mean of the steps (that script). Never run on the real weights.
    """

    CARD = CheckpointCard(
        family="rlhflow",
        kind="prm",
        encoding=Encoding(template="{problem} ", chat=True),
        aggregation="mean",
        score_means="value",
        label_source="completions of Mistral or DeepSeek solutions",
        base="Llama-3.1-8B-Instruct",
    )
    good = 0
    markers = (RLHFLOW_PLACE,)
    separators = ("ки",)

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        texts = [step.strip() for step in step_texts(text, spans)]
        texts[0] = f"{question} {texts[0]}"
        turns: list[Turn] = []
        for content in texts:
            turns += ("user", content), ("assistant", RLHFLOW_PLACE)
        ids = plain_ids(self.tokenizer, chat_text(self.tokenizer, *turns))
        positions = marked(ids, self.tokenizer.convert_tokens_to_ids(RLHFLOW_PLACE), len(spans))
        for position in positions:
            ids[position] = one_token(self.tokenizer, "+")
        return EncodedTrace(ids=tuple(ids), positions=tuple(position - 1 for position in positions))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        one_token(checkpoint.tokenizer, RLHFLOW_PLACE)
        return checkpoint.answers(cls.answer_ids(checkpoint.tokenizer))

    @classmethod
    def answer_ids(cls, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
        return one_token(tokenizer, "+"), one_token(tokenizer, "-")


class Skywork(PublishedModel):
    """Skywork-o1-Open-PRM, 1.5B and 7B.

    Input: ``encode(bos + question + "\\n")``, then for each line of the whole solution ``encode(line)``
    (nothing for an empty one) and the last id of ``encode("\\n")``. No chat template. The models give a score
    at every line end; a step is read at the end of its last line with text. A step that another one follows
    on the same line gets a line end, which the authors' input lacks. Score: sigmoid of a linear value head
    ``v_head.summary`` (h → 1) at that line end.

    Built from the authors' skywork-o1-prm-inference: ``prepare_input`` (ids), ``ValueHead`` (shape and name;
    its dropout is off in use) and their vLLM plug-in (architecture ``Qwen2ForPrmModel``, ``lm_head`` to be
    ignored). They name no rule for a whole solution; ``last`` is the default of search-and-learn, which
    serves these models. What the labels were is not published. Never run on the real weights; the tokenizer's
    beginning of text was not seen.
    """

    CARD = CheckpointCard(
        family="skywork",
        kind="prm",
        encoding=Encoding(template="{problem}\n"),
        separator="\n",
        aggregation="last",
        score_means="value",
        label_source="not published",
        base="Qwen2.5-Math-Instruct",
    )

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        encode = self.tokenizer.encode
        line_end = encode("\n")[-1]
        ids = list(encode(f"{self.tokenizer.bos_token}{question}\n"))
        text, ends = _with_line_ends(text, spans)
        line_ends = []
        for line in text.split("\n"):
            # a line end that is tokenised with what stands before it gives other ids
            ids += [*(encode(line) if line else ()), line_end]
            line_ends.append(len(ids) - 1)
        reads = (line_ends[text.count("\n", 0, end)] for end in ends)
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(logits_sc[:, 0])

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        if checkpoint.tokenizer.bos_token is None:
            raise CheckpointError(
                f"{checkpoint.directory}: the tokenizer names no bos_token, which begins the input"
            )
        return checkpoint.linear("v_head.summary")


_REST_OF_LINE = re.compile(r"[^\S\n]*(?:\n|\Z)")


def _with_line_ends(text: str, spans: Sequence[Span]) -> tuple[str, list[int]]:
    """``text`` with a line end after each step that another one follows on its line, and the end of each
    step's last visible character."""
    pieces: list[str] = []
    ends, reached = [], 0
    for start, end in spans:
        visible = start + len(text[start:end].rstrip())
        ends.append(visible + len(pieces))
        if not _REST_OF_LINE.match(text, visible):
            pieces.append(text[reached:end] + "\n")
            reached = end
    return "".join([*pieces, text[reached:]]), ends


QWEN_MARKER = "<extra_0>"
QWEN_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class QwenPRM(PublishedModel):
    """Qwen2.5-Math-PRM-7B, -72B and Qwen2.5-Math-7B-PRM800K (arXiv 2501.07301, 2412.06559).

    Input: the tokenizer's chat template, without generation prompt, on a system message (``QWEN_SYSTEM``),
    the question as user, and as assistant the steps, each followed by ``<extra_0>`` (id 151651), with nothing
    between. Score: class 1 of a softmax over two classes at each ``<extra_0>``. The head, which the hub
    defines in remote code (``Qwen2ForProcessRewardModel``), is Linear(h, h), ReLU, Linear(h, 2); it is read
    here from ``score.0`` and ``score.2``, and no remote code is run.

    Built from the model cards (input, softmax, marker) and from the ports of the head in vLLM and SGLang (its
    shape and names, and that an ``lm_head`` in the files is to be ignored). Solution score: product of the
    steps (arXiv 2501.07301). Never run on the real weights; the sizes of the real ``config.json`` were not
    seen.
    """

    CARD = CheckpointCard(
        family="qwen-prm",
        kind="prm",
        encoding=Encoding(template="{problem}", chat=True, system=QWEN_SYSTEM),
        separator="\n\n",
        aggregation="product",
        score_means="correctness",
        label_source="Monte Carlo and judge in agreement (PRM-7B, -72B); PRM800K, neutral good (7B-PRM800K)",
        base="Qwen2.5-Math-Instruct",
    )
    good = 1
    markers = (QWEN_MARKER,)
    separators = (QWEN_MARKER,)
    tag = QWEN_MARKER

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        answer = "".join(step + QWEN_MARKER for step in step_texts(text, spans))
        turns = chat_text(self.tokenizer, ("system", QWEN_SYSTEM), ("user", question), ("assistant", answer))
        ids = plain_ids(self.tokenizer, turns)
        reads = marked(ids, self.tokenizer.convert_tokens_to_ids(QWEN_MARKER), len(spans))
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        one_token(checkpoint.tokenizer, QWEN_MARKER)
        return process_head(checkpoint)


def process_head(checkpoint: Checkpoint) -> nn.Module:
    """Linear, ReLU, Linear from ``score.0`` and ``score.2``."""
    return nn.Sequential(checkpoint.linear("score.0"), nn.ReLU(), checkpoint.linear("score.2", classes=2))


REASONEVAL_PROMPT = "Question:\n{problem}\nAnswer:\nLet's think step by step.\n"


class ReasonEval(PublishedModel):
    """ReasonEval-7B and -34B (arXiv 2404.05692).

    Input: ``REASONEVAL_PROMPT`` with the question, then the steps, the tokenizer's pad token after the prompt
    and after each step; all tokenised as one text, then the pad tokens are taken out. Score: softmax over
    three classes [negative, neutral, positive]; validity is neutral + positive and is the score (neutral
    alone is their redundancy). The head is ``score_head`` (h → 3).

    Where it is read follows the authors' ``codes/examples.py`` to the letter. For the 34B (Llama) that is
    each step's last token. For the 7B (Mistral) the pad token is also the beginning of text: the script takes
    it out with the separators, puts it back in front, and does not count it, so it reads the token before a
    step's last one. The figures printed in that script come from there, so it is kept.

    Built from that script (input, positions, classes, names of the head). Solution score: minimum validity
    (the script). Never run on the real weights; the 7B's special tokens are inferred from the script.
    """

    CARD = CheckpointCard(
        family="reasoneval",
        kind="prm",
        encoding=Encoding(template=REASONEVAL_PROMPT),
        aggregation="min",
        score_means="correctness",
        label_source="PRM800K",
        base="WizardMath-7B-V1.1 (7B), llemma_34b (34B)",
    )

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        separator = self.tokenizer.pad_token
        pieces = [REASONEVAL_PROMPT.replace("{problem}", question), *step_texts(text, spans)]
        tokens = self.tokenizer("".join(piece + separator for piece in pieces))["input_ids"]
        mark = self.tokenizer.pad_token_id
        ids: list[int] = []
        ends: list[int] = []  # last token before each separator, counted without separators
        for token in tokens:
            if token == mark:
                ends.append(len(ids) - 1)
            else:
                ids.append(token)
        begins = mark == self.tokenizer.bos_token_id
        reads = ends[2:] if begins else ends[1:]
        if len(reads) != len(spans):
            raise ScoreError(f"{len(reads)} step separators ({separator!r}) came back for {len(spans)} steps")
        return EncodedTrace(ids=tuple([mark, *ids] if begins else ids), positions=tuple(reads))

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        return logits_sc.softmax(dim=-1)[:, 1:].sum(dim=-1)

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        if checkpoint.tokenizer.pad_token is None:
            raise CheckpointError(
                f"{checkpoint.directory}: the tokenizer names no pad_token, which separates steps"
            )
        return checkpoint.linear("score_head", classes=3)


TRL_SEPARATOR = "\n"


class TokenClassifier(PublishedModel):
    """Token classifiers, such as those that TRL's ``PRMTrainer`` trains (experimental since TRL 0.24).

    Input: the tokenizer's beginning of text if it names one, the ids of the question, then for each step its
    ids and the separator's ids, each piece tokenised separately without special tokens. The separator is
    ``TRL_SEPARATOR``, TRL's default; a checkpoint does not say which it was trained with. Score: class 1 of a
    softmax over two classes at the separator's last token. The head is the ``score`` (in some architectures
    ``classifier``) layer of a ``…ForTokenClassification`` model.

    Built from TRL's ``PRMTrainer.tokenize_row`` and its documentation. TRL names no rule for a whole
    solution; the minimum is the package's default. Never run on the real weights.
    """

    CARD = CheckpointCard(
        family="trl",
        kind="prm",
        encoding=Encoding(template="{problem}"),
        aggregation="min",
        score_means="correctness",
        label_source="not recorded in the checkpoint",
        base="not recorded in the checkpoint",
    )
    good = 1

    begins = True
    """Whether the tokenizer's beginning of text comes first."""

    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        separator = plain_ids(self.tokenizer, TRL_SEPARATOR)
        first = self.tokenizer.bos_token_id if self.begins else None
        ids = [*(() if first is None else (first,)), *plain_ids(self.tokenizer, question)]
        reads = []
        for step in step_texts(text, spans):
            ids += [*plain_ids(self.tokenizer, step), *separator]
            reads.append(len(ids) - 1)
        return EncodedTrace(ids=tuple(ids), positions=tuple(reads))

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        name = "classifier" if "classifier.weight" in checkpoint.tensors else "score"
        return checkpoint.linear(name, classes=2)


class Pure(TokenClassifier):
    """PURE's PRM, PURE-PRM-7B (arXiv 2504.15275), also published as jinachris/Qwen2.5-Math-7B-PRM800K.

    Input: the ids of the question, then for each step its ids and the id of one line end. No chat template,
    no beginning of text. Score: p1 - p0 of a softmax over two classes at the line end, in [-1, 1]; above 0
    means correct. The authors cut steps at blank lines, but write one line end after each
    (``prm_step_separator`` in their trainer; the card's text; their ``process_bench.py`` is called with it).

    Built from the authors' repository (``experience_maker.py``, ``utils.py``, ``PRM/finetune.py``) and their
    card. They train with TRL, and call the score layer an MLP, so the checkpoint seems to carry the head of
    ``Qwen2ForProcessRewardModel``; both that head and a plain linear one are read. Solution score: minimum;
    the authors use a softmax-weighted sum (temperature 0.1) that approaches it. Never run on the real
    weights; the real names of the head's weights were not seen.
    """

    CARD = CheckpointCard(
        family="pure",
        kind="prm",
        encoding=Encoding(template="{problem}"),
        separator="\n\n",
        aggregation="min",
        score_means="correctness",
        label_source="PRM800K, neutral as good",
        base="Qwen2.5-Math-7B",
    )

    begins = False

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        chances = logits_sc.softmax(dim=-1)
        return chances[:, 1] - chances[:, 0]

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        wide = "score.0.weight" in checkpoint.tensors
        return process_head(checkpoint) if wide else super().read_head(checkpoint)
