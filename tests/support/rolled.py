"""Rollouts of any policy, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from surefoot.answers import AnswerChecker, Grader
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, Sampling
from surefoot.records import Problem
from surefoot.rl.rollouts import RolloutBatch, roll_out
from surefoot.segment import Line


def rolled(
    policy: Policy, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], *, n: int, max_tokens: int = 48
) -> RolloutBatch:
    """``n`` rollouts of each problem text, cut at lines."""
    with AnswerChecker("exact") as checker:
        return asyncio.run(
            roll_out(
                policy,
                [Problem(text=text, answer="7") for text in texts],
                tokenizer,
                n=n,
                seed=3,
                segmenter=Line(),
                grader=Grader(checker=checker),
                prompt=PromptFormat(),
                sampling=Sampling(max_tokens=max_tokens),
            )
        )
