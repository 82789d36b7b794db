"""Tiny checkpoints with the tokens and chat templates of published families, and straight-line readings.

The tokenizers are real ones of the ``tokenizers`` library. In :func:`byte_tokenizer` the id of a byte is the
byte, so that a golden input can be written as text: ``[*b"user\\n", ...]``.
"""

from __future__ import annotations

import json

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen2PreTrainedModel,
)

from surefoot.models.scorer import Scorer
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, Trace

# Published text: Qwen2.5 (tokenizer_config.json of Qwen2.5-Math), without its branches for tools.
QWEN_TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>system\\nPlease reason step by step, and put your final answer within \\\\boxed{}."
    "<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if (message.role == 'user') or (message.role == 'system' and not loop.first) "
    "or (message.role == 'assistant' and not message.tool_calls) %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Published text: Llama 3.1 Instruct (tokenizer_config.json), without its branches for tools.
LLAMA_TEMPLATE = (
    "{{- bos_token }}"
    "{%- set date_string = '26 Jul 2024' %}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}"
    "{%- else %}{%- set system_message = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{{- 'Cutting Knowledge Date: December 2023\\n' }}"
    "{{- 'Today Date: ' + date_string + '\\n\\n' }}"
    "{{- system_message }}{{- '<|eot_id|>' }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)

NL2 = 256
"""Id of a blank line, one token as in the vocabularies of Qwen and Llama 3."""
DOT_NL2 = 257
"""Id of a full stop and blank line, one token likewise."""
SPECIAL = 258
"""Id of the first special token."""

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 280,
    "max_position_embeddings": 512,
    # large, so that scores differ from ½
    "initializer_range": 0.3,
}


def byte_tokenizer(
    special: list[str], *, template: str | None = None, bos: str | None = None, pad: str | None = None
) -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes by value, two merges, then ``special`` tokens from 258 on."""
    sign = _byte_signs()
    line = sign[10]
    vocab = {character: byte for byte, character in sign.items()}
    vocab |= {line * 2: NL2, "." + line * 2: DOT_NL2}
    built = Tokenizer(models.BPE(vocab=vocab, merges=[(line, line), (".", line * 2)]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=built, chat_template=template, bos_token=bos, pad_token=pad or special[-1]
    )


PIECES = ["<unk>", "<s>", "</s>", "<pad>", "▁", "к", "и", "ки", "▁ки", "▁+", "▁-", "\n"]
PIECES += [chr(code) for code in range(33, 127)]
"""Vocabulary of :func:`piece_tokenizer` by id."""


def piece_tokenizer(*, pad: str | None = None) -> PreTrainedTokenizerFast:
    """BPE on characters as Llama 2 and Mistral have it: spaces as ``▁``, one in front of every stretch."""
    vocab = {piece: number for number, piece in enumerate(PIECES)}
    merges = [("к", "и"), ("▁", "ки"), ("▁", "+"), ("▁", "-")]
    built = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", PIECES.index("<s>"))]
    )
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    built.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")]
    )
    if pad == "<pad>":
        built.add_special_tokens([AddedToken(pad, special=True, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token=pad
    )


QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"]


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    """The class that the hub's remote code defines, as far as its weights and logits go."""

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )
        self.post_init()

    def forward(self, **inputs):
        return self.score(self.model(**inputs).last_hidden_state)


def save_qwen_prm(directory, *, shard="5GB", tokens=QWEN_TOKENS, **changes):
    """A tiny random checkpoint as the hub has it; returns its model."""
    torch.manual_seed(1)
    model = Qwen2ForProcessRewardModel(Qwen2Config(**TINY | changes)).eval()
    model.save_pretrained(directory, max_shard_size=shard)
    config = json.loads((directory / "config.json").read_text())
    auto = {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"}
    (directory / "config.json").write_text(json.dumps(config | {"auto_map": auto}))
    (directory / "modeling_qwen2_rm.py").write_text("raise SystemExit('remote code was run')\n")
    byte_tokenizer(tokens, template=QWEN_TEMPLATE, pad="<|endoftext|>").save_pretrained(directory)
    return model


def save_math_shepherd(directory, **changes):
    """A tiny random checkpoint as the hub has it; returns its model."""
    torch.manual_seed(2)
    model = MistralForCausalLM(MistralConfig(**TINY | changes)).eval()
    model.save_pretrained(directory, max_shard_size="60KB")
    piece_tokenizer().save_pretrained(directory)
    return model


def pieces(text: str) -> list[int]:
    """Ids of single characters, with ``▁`` for a space: what :func:`piece_tokenizer` gives without merges."""
    return [PIECES.index(character) for character in text]


def item(question: str, steps: list[str], join: str = "\n\n") -> ProblemTrace:
    """A trace whose steps tile its text, each with the line ends after it."""
    problem = Problem(text=question)
    spans, text = [], ""
    for number, step in enumerate(steps):
        start = len(text)
        text += step + (join if number + 1 < len(steps) else "")
        spans.append(Step(start=start, end=len(text)))
    return ProblemTrace(
        problem=problem, trace=Trace(problem_id=problem.id, text=text, steps=tuple(spans), seed=len(steps))
    )


BATCH = [item("1+1?", ["2"]), item("7-3?", ["4", "so 4!", "4"]), item("1+1?", ["2", "3", "9-1=8", "8"])]
"""Traces of unlike length, two of one question."""


def states(model: torch.nn.Module, sequences: list[list[int]], side: str) -> list[torch.Tensor]:
    """What ``model`` gives at each token of each sequence, in one batch padded on ``side``.

    ``model`` has a head, so that its output has ``logits``, or it returns a tensor.
    """
    width = max(map(len, sequences))
    ids = torch.zeros((len(sequences), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(width - len(sequence), width) if side == "left" else slice(0, len(sequence))
        ids[row, place], mask[row, place] = torch.tensor(sequence), 1
    depths = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, position_ids=depths)
    values = output if isinstance(output, torch.Tensor) else output.logits
    return [values[row][mask[row].bool()] for row in range(len(sequences))]


def scores_of(scorer: Scorer, items: list[ProblemTrace]) -> list[list[float]]:
    """Scores of traces that must all be scored."""
    return [[float(score) for score in record.scores] for record in scorer.score_traces(items)]


def hold_later_steps_apart(scorer: Scorer) -> None:
    """Scores of steps do not change with what comes after, and do with what comes before."""
    first = item("7-3?", ["4", "so", "five", "then 9"])
    second = item("7-3?", ["4", "so", "then 9", "five"])
    [one], [two] = scores_of(scorer, [first]), scores_of(scorer, [second])
    close([one[:2]], [two[:2]])
    assert len(one) == 4
    assert one[2:] != two[2:]


def close(found: list[list[float]], expected: list[list[float]], tolerance: float = 1e-5) -> None:
    """Both hold the same numbers of steps and the same scores."""
    assert [len(row) for row in found] == [len(row) for row in expected]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), atol=tolerance, rtol=tolerance)


def _byte_signs() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level BPE (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}
