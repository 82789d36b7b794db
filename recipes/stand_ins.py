"""Tiny models and files in the forms of published ones, for ``--tiny``; problems of full size for
``--dry-run``.

A stand-in policy has random weights and a bias towards a few whole lines, so that it writes steps and answers
of which some are right. A stand-in reward model has random weights in the form of its family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
    Qwen2PreTrainedModel,
)

from surefoot.io import write_records
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace

TINY: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
END = "<|end|>"


def stand_in(value: Any, folder: Path) -> Any:
    """The path of the stand-in that ``value`` names (``stand-in:NAME``), made if need be; else ``value``."""
    if not (isinstance(value, str) and value.startswith("stand-in:")):
        return value
    name = value.removeprefix("stand-in:")
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        MADE[name](path)
    return path


def write_sizes(sizes: Mapping[str, Any], folder: Path) -> Path:
    """Problems of full size and one trace of each, of typical lengths, in ``folder``, which is returned."""
    stated = sizes["problems"]
    text = "x " * (stated["characters"] // 2)
    problems = [Problem(text=f"{number} {text}", answer="1") for number in range(stated["count"])]
    path = folder / stated["file"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, problems)
    if "traces" in sizes:
        line = "x " * (sizes["traces"]["characters"] // 2) + "\n"
        written = line * sizes["traces"]["steps"]
        traces = [segment_trace(Trace(problem_id=problem.id, text=written)) for problem in problems]
        write_records(folder / sizes["traces"]["file"], traces)
    return folder


TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
STEPS = {"Step 1: 3 + 4 = 7.\n": 8.0, "Step 2: 2 * 3 = 7.\n": 8.0}
"""Lines of Math-Shepherd's form, with their logits above those of a byte."""
BLANK = {"So 3 + 4 = 7.\n\n": 8.0, "So 2 * 3 = 7.\n\n": 8.0}
"""The same for models that write blank lines between steps."""


def write_policy(path: Path, lines: Mapping[str, float], answer: str) -> None:
    """A language model that writes ``lines``, then ``answer`` with 7, which is right, or 9, and ends."""
    answers = {answer.replace("#", digit): 7.5 for digit in "79"}
    write_model(path, {**lines, **answers, END: 8.0})


def write_model(
    path: Path, liked: Mapping[str, float], more: Sequence[str] = (), **changes: Any
) -> LlamaForCausalLM:
    """A language model of bytes; each text of ``liked`` is one token, with so much higher a logit.

    Its embeddings have one direction in common, so that the normed state does too, along which the head's
    rows of the liked tokens lie. ``more`` are further tokens.
    """
    torch.manual_seed(0)
    tokenizer = tokenizer_of([*liked, *more])
    config = LlamaConfig(
        **{**TINY, **changes}, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id
    )
    model = LlamaForCausalLM(config)
    along = torch.full((config.hidden_size,), config.hidden_size**-0.5)
    with torch.no_grad():
        if liked:
            model.get_input_embeddings().weight += along
        for text, logit in liked.items():
            token = tokenizer.convert_tokens_to_ids(text)
            model.lm_head.weight[token] += along * logit / config.hidden_size**0.5
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model


def tokenizer_of(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Bytes, an end, and each of ``texts`` as one token; with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    built.add_tokens([AddedToken(text, normalized=False) for text in texts if text != END])
    return PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    """Qwen2.5-Math-PRM, as far as its weights go."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
        self.post_init()


def write_qwen_prm(path: Path) -> None:
    """Qwen2.5-Math-PRM with random weights."""
    torch.manual_seed(1)
    tokenizer = tokenizer_of(["<|im_start|>", "<|im_end|>", "<extra_0>"])
    Qwen2ForProcessRewardModel(Qwen2Config(**TINY, vocab_size=len(tokenizer))).save_pretrained(path)
    tokenizer.save_pretrained(path)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_math(path: Path) -> None:
    """Problems as MATH-500 has them, and AIME."""
    write_rows(path, ({"problem": f"What is {k} + {7 - k}?", "answer": "7"} for k in range(1, 5)))


def write_gsm8k(path: Path) -> None:
    """Problems as GSM8K has them."""
    write_rows(
        path,
        (
            {"question": f"Ann has {k} cards and gets {7 - k}. How many?", "answer": f"{k} + {7 - k}\n#### 7"}
            for k in range(1, 5)
        ),
    )


def write_prm800k(path: Path) -> None:
    """Sessions as PRM800K's second phase has them: the second step is wrong."""

    def step(text: str, rating: int) -> dict[str, Any]:
        completion = {"text": text, "rating": rating, "flagged": False}
        return {"completions": [completion], "human_completion": None, "chosen_completion": 0}

    write_rows(
        path,
        (
            {
                "labeler": "a",
                "timestamp": "2022-07-17T16:56:51.323252",
                "generation": 9,
                "is_quality_control_question": False,
                "is_initial_screening_question": False,
                "question": {"problem": f"What is {k} + {7 - k} + 2?", "ground_truth_answer": "9"},
                "label": {
                    "steps": [step(f"So {k} + {7 - k} = 7.", 1), step("So 7 + 2 = 8.", -1)],
                    "total_time": 1000,
                    "finish_reason": "found_error",
                },
            }
            for k in range(1, 7)
        ),
    )


def write_processbench(path: Path) -> None:
    """The four files of ProcessBench, in a folder."""
    path.mkdir()
    for name in ("gsm8k", "math", "olympiadbench", "omnimath"):
        rows = [
            {
                "id": f"{name}-{k}",
                "generator": "stand-in",
                "problem": f"What is {k} + 1?",
                "steps": [f"{k} + 1 = {k + 1 + k % 2}.", "So that is it."],
                "final_answer_correct": k % 2 == 0,
                "label": 0 if k % 2 else -1,
            }
            for k in range(6)
        ]
        (path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")


MADE: Mapping[str, Callable[[Path], object]] = {
    "words": partial(write_model, liked={}),
    "chat": partial(write_policy, lines=BLANK, answer="It is \\boxed{#}."),
    "mistral-7b-sft": partial(write_policy, lines=STEPS, answer="The answer is: #\n"),
    # `+ -` has to be two tokens, and the tag is one
    "math-shepherd-mistral-7b-prm": partial(write_model, liked={}, more=["ки", "+", " -"]),
    "Qwen2.5-Math-PRM-7B": write_qwen_prm,
    "math.jsonl": write_math,
    "gsm8k.jsonl": write_gsm8k,
    "prm800k.jsonl": write_prm800k,
    "processbench": write_processbench,
}
"""Stand-ins by name: a family follows from the name of its published checkpoint."""
