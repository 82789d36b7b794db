"""VisualPRM (arXiv 2503.10291): an InternVL model that judges each step of an answer about images.

Input, in ChatML: a system message; then each step as a user's turn, the first one after ``### Question:`` and
the question with its images; after each the assistant's turn, ``+``. Score: where that turn begins, softmax
over the logits of ``+`` and ``-``, the first. Solution score: the mean (``generate_overall_score``, soft).
An image becomes tiles of the model's size, up to 12 in the grid nearest to its shape and one of the whole,
each ``num_image_token`` times ``<IMG_CONTEXT>`` between ``<img>`` and ``</img>``. A question with as many
``<image>`` as images has them there; else they come first, each on its line.

Built from ``InternVLRewardModel`` (``generate_steps_with_soft_score``, and ``_v2``, which reads all steps in
one pass and is the same) and the model card's ``load_image``. The system message is the configuration's
``system_message`` if it has one, as there, else the system message of their training data
(``visualprm_data_pipeline_postprocess.py``). Weights are read in the layout of transformers
(``InternVLForConditionalGeneration``), not in the authors', which needs their code. Never run on the real
weights.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, RecordError
from surefoot.extras import need
from surefoot.images import FORMATS, embedded, is_inline
from surefoot.messages.reading import embedded_bytes
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.engine.packing import TrunkOutput
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel, encode_texts, marked, plain_ids, step_texts
from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace
from surefoot.records import Attachment
from surefoot.segment.spans import Span

if TYPE_CHECKING:
    from PIL import Image

SYSTEM = """\
You are an advanced AI assistant, designed to serve as a process supervision model. In this task, I will \
provide a problem statement followed by the first step of the solution process. For each subsequent turn, I \
will give you a new step in the solution. Your role is to assess whether the solution process is correct up \
to the current step.

- In the **first round**, I will input the problem and the first step of the solution process.
- In **each subsequent round**, I will provide the next step in the solution.

For each step, you should:

- Respond with **"+"** if you believe the solution process is correct up to this step.
- Respond with **"-"** if you detect any issues or errors in the process up to this step.

Please note:
- Only respond with **"+"** or **"-"**. Do not provide any additional explanations, comments, or \
justifications.

Your task is to verify the accuracy and correctness of each step in the given solution process."""
OPENING = "<|im_start|>assistant\n"
TURN = f"{OPENING}+<|im_end|>\n"
_TILES = 12


class VisualPRM(PublishedModel):
    """See the module."""

    CARD = CheckpointCard(
        family="visualprm",
        kind="prm",
        encoding=Encoding(template="### Question:\n{problem}\n\n### Solution Process:\n", chat=True),
        separator="\n\n",
        aggregation="mean",
        score_means="value",
        label_source="VisualPRM400K: any of 16 continuations right",
        base="InternVL2.5-8B",
    )
    good = 0
    markers = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
    images: Path | None = None
    """Folder to which the paths of images are relative; without it none is read from a file."""

    def __init__(self, trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: nn.Module) -> None:
        need("PIL", "a model of images")
        from transformers import GotOcr2ImageProcessorPil
        from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

        super().__init__(trunk, tokenizer, head)
        vision = trunk.config.vision_config
        size = dict(zip(("height", "width"), vision.image_size, strict=True))
        colours = {"image_mean": IMAGENET_DEFAULT_MEAN, "image_std": IMAGENET_DEFAULT_STD}
        self.processor = GotOcr2ImageProcessorPil(
            size=size, crop_to_patches=True, max_patches=_TILES, **colours
        )
        self.tile_tokens = int(
            (size["height"] // vision.patch_size[0]) ** 2 * trunk.config.downsample_ratio**2
        )
        self.system = getattr(trunk.config, "system_message", None) or SYSTEM

    @classmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        if "InternVLForConditionalGeneration" not in checkpoint.architectures:
            raise CheckpointError(
                f"{checkpoint.directory}: weights in this layout need their authors' code, which never runs; "
                "convert them with transformers' convert_internvl_weights_to_hf.py"
            )
        tokenizer = checkpoint.tokenizer
        vocabulary, name = tokenizer.get_vocab(), tokenizer.name_or_path
        if missing := [token for token in ("+", "-", *cls.markers) if token not in vocabulary]:
            raise CheckpointError(f"{name}: {missing[0]!r} is not a token here; VisualPRM's tokenizer has it")
        opening, turn = (plain_ids(tokenizer, text) for text in (OPENING, TURN))
        if turn[: len(opening) + 1] != [*opening, vocabulary["+"]]:
            raise CheckpointError(f"{name}: '+' joins another token after {OPENING!r}")
        return checkpoint.answers((vocabulary["+"], vocabulary["-"]), within="language_model.")

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens of questions with images and of their answers; of others, and of images that cannot be read,
        the reason. Raises ``ScoreError`` for a trace without steps."""
        return list(map(self._encode, items))

    def _encode(self, item: ProblemTrace) -> EncodedTrace:
        limit = self.card.encoding.max_length
        try:
            plain, pictures = as_text(item)
            images = list(self._read_images(pictures, limit))
        except RecordError as error:
            return EncodedTrace.unreadable(item, str(error))
        write = partial(self.write, images=images)
        [encoded] = encode_texts(write, self.tokenizer, [plain], self._reserved, limit=limit)
        return encoded

    def _read_images(self, pictures: Sequence[Attachment], limit: int) -> Iterator[bytes]:
        """The images' files, as long as they fit the context. Raises ``RecordError``."""
        tokens = 0
        for picture in pictures:
            held = picture
            if self.images is not None or is_inline(picture):
                held = embedded(picture, self.images or Path())
            if not is_inline(held):
                raise RecordError(f"image {held.uri}: not in a folder that is known here, and never fetched")
            content = embedded_bytes(str(held.uri))
            tokens += self.tile_tokens * self._tiles(content)
            if tokens >= limit:
                raise RecordError(f"the images take more than the model's context of {limit} tokens")
            yield content

    def _tiles(self, content: bytes) -> int:
        size = _opened(content).size
        return int(self.processor.get_number_of_image_patches(size[1], size[0]))

    def write(
        self, question: str, text: str, spans: Sequence[Span], images: Sequence[bytes] = ()
    ) -> EncodedTrace:
        named = question.split("<image>") if images else []
        if len(named) != len(images) + 1:
            named = ["", *["\n"] * (len(images) - 1), f"\n{question}"] if images else [question]
        question = named[0]
        for content, next_text in zip(images, named[1:], strict=True):
            tokens = "<IMG_CONTEXT>" * self.tile_tokens * self._tiles(content)
            question += f"<img>{tokens}</img>{next_text}"
        first_step, *later_steps = step_texts(text, spans)
        written = f"<|im_start|>system\n{self.system}<|im_end|>\n"
        for turn in (f"### Question:\n{question}\n\n### Solution Process:\n{first_step}", *later_steps):
            written += f"<|im_start|>user\n{turn}<|im_end|>\n{TURN}"
        ids = self.tokenizer(written)["input_ids"]
        starts = marked(ids, self.tokenizer.get_vocab()["<|im_start|>"], 1 + 2 * len(spans))
        opening = len(plain_ids(self.tokenizer, OPENING))
        reads = tuple(at + opening - 1 for at in starts[2::2])
        return EncodedTrace(ids=tuple(ids), positions=reads, images=tuple(images))

    @torch.no_grad()
    def states(self, trace: EncodedTrace, end: int) -> torch.Tensor:
        """Last hidden states ``[end, H]`` of the first ``end`` tokens of what :meth:`encode` gave."""
        inputs: dict[str, Any] = {"input_ids": torch.tensor([trace.ids[:end]])}
        if trace.images:
            images = [_opened(content).convert("RGB") for content in trace.images]
            inputs["pixel_values"] = self.processor(images=images, return_tensors="pt")["pixel_values"]
        placed = {name: value.to(self.trunk.device) for name, value in inputs.items()}
        return self.trunk(**placed, use_cache=False).last_hidden_state[0]

    def scorer(self, *, name: str, batch_tokens: int, images: Path | None = None) -> Scorer:
        self.images = images
        return _VisualScorer(self, name=name, batch_tokens=batch_tokens)


class _VisualScorer(Scorer):
    """Each trace with its images in a separate pass."""

    model: VisualPRM

    def _read(self, traces: Sequence[EncodedTrace]) -> Iterator[TrunkOutput]:
        for number, trace in enumerate(traces):
            at = [position for position in trace.positions if position is not None]
            states = self.model.states(trace, at[-1] + 1)[at] if at else torch.empty(0)
            yield TrunkOutput(new={number: at[-1] + 1 if at else 0}, states={number: states}, paths={})


def as_text(item: ProblemTrace) -> tuple[ProblemTrace, list[Attachment]]:
    """A question and the steps of its answer as a text, and the images of the question.

    Raises ``RecordError`` for what VisualPRM does not read: a run with calls or several answers, and files.
    """
    trace = item.trace
    if trace.text is not None:
        return item, []
    *questions, answer = trace.messages
    attached = [each for message in trace.messages for each in message.attachments]
    if other := [each.kind for each in attached if each.kind != "image"]:
        raise RecordError(f"the trace holds a file of kind {other[0]!r}, which the model cannot read")
    in_answer = all(step.message == len(questions) and step.part == "content" for step in trace.steps)
    if any(message.role != "user" for message in questions) or answer.role != "assistant" or not in_answer:
        raise RecordError("the model reads a question and one answer, not an agent's run; use a judge")
    question = "\n".join(message.content or "" for message in questions)
    steps = tuple(step.model_copy(update={"message": None}) for step in trace.steps)
    text = {"messages": (), "text": answer.content or "", "steps": steps}
    problem = item.problem.model_copy(update={"text": question})
    return ProblemTrace(problem=problem, trace=trace.model_copy(update=text)), attached


def _opened(content: bytes) -> Image.Image:
    from PIL import Image

    return Image.open(io.BytesIO(content), formats=tuple(FORMATS))
