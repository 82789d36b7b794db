"""Tiny random checkpoints, and solutions from the digit world, for the tests of every stage after them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from lab_traces import lab_item
from real_browser import chromium

from benchmarks.worlds.digits.world import Difficulty, generate_problems
from surefoot.protocols import ProblemTrace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if "PYTEST_XDIST_WORKER" in os.environ:  # more threads would only get in each other's way
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples each time, so that a failure repeats, and no deadline, so that no test depends on the load
# of the machine. Look for new examples with `--hypothesis-profile=default`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

LONGEST = (
    *("journeys/test_chaos.py", "work/test_ray_engine.py", "cli/test_commands.py", "test_examples.py"),
    *("server/pages/test_screenshots.py", "rl/test_rl_processes.py"),
    *("training/test_processes.py", "cli/test_quickstart.py", "journeys/test_tutorial.py"),
    *("training/test_loop.py", "cli/test_label_commands.py", "server/gateway/test_gateway_command.py"),
    *("test_notebooks.py", "test_recipes.py", "server/pages/test_browser_day.py"),
)
"""Files that take longest: they start first, so that no process is left with one of them at the end."""


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores: tests of servers and of killed workers mostly wait."""
    return len(os.sched_getaffinity(0)) + 2 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return 0 if str(item.path).endswith(LONGEST) else 1 if item.path in slow else 2

    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Garbage collections pass over the modules and the tests, which are a million objects."""
    gc.collect()
    gc.freeze()


CONTEXT = 128
"""Tokens that the tiny models can read."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for a module without ``asyncio.run``; skips where it is missing."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def lab_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama (hidden 32, 2 layers, no dropout) with the digits' tokenizer: policy and trunk."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.worlds.digits.checkpoints import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=0.2,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    return _saved(model, tokenizer, tmp_path_factory.mktemp("lab-base"))


@pytest.fixture(scope="session")
def gpt2_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 (with dropout) and a byte-level BPE tokenizer that has no pad token."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    corpus = [item.text for item in generate_problems(20, seed=3)] + ["naïve café → 2 ≤ 3 so 7 + 3 = 10\n"]
    bpe.train_from_iterator(corpus, vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>")
    assert tokenizer.pad_token is None
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=CONTEXT,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    return _saved(model, tokenizer, tmp_path_factory.mktemp("gpt2-base"))


@pytest.fixture(scope="session")
def lab_items() -> list[ProblemTrace]:
    """Twelve short problems, each with one solution; every other solution has a wrong digit in it."""
    rng = np.random.default_rng(7)
    problems = generate_problems(12, seed=5, difficulty=Difficulty(min_operations=2, max_operations=4))
    return [lab_item(problem, wrong=number % 2 == 1, rng=rng) for number, problem in enumerate(problems)]


def _saved(model, tokenizer, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
