"""Make the shipped models anew: ``python -m surefoot.lab.train policy --out DIR`` (or ``trunk``).

Both are ordinary language models of right worked solutions. The policy is stopped early, so that it errs;
the trunk is trained for longer, as the base of a reward model usually is larger or better trained than
the policy it judges. No step or outcome label is used for either.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from surefoot.lab.tokenizer import build_tokenizer
from surefoot.lab.world import Difficulty, draw_chain, worked_solution

RESTATE = 0.04  # share of lines that are followed by a restatement, so that neutral steps occur


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Shape and training of one model. ``updates`` of a schedule that would run for ``schedule``."""

    layers: int
    hidden: int
    updates: int
    schedule: int
    batch: int = 32
    learning_rate: float = 2e-3
    seed: int = 0


RECIPES = {
    "policy": Recipe(layers=4, hidden=128, updates=420, schedule=1500),
    "trunk": Recipe(layers=6, hidden=128, updates=6000, schedule=6000, seed=1),
}
DIFFICULTY = Difficulty(operations="++--*")
"""The quickstart's problems: 6 to 10 operations, a fifth of them multiplications."""


def train(recipe: Recipe, out: Path) -> None:
    """Train from nothing and write an ordinary transformers checkpoint with its tokenizer to ``out``."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    tokenizer = build_tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=3 * recipe.hidden,
            num_hidden_layers=recipe.layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    start, tokens = time.perf_counter(), 0
    for update in range(recipe.updates):
        rise = min(1.0, (update + 1) / 100)
        fall = max(0.02, 1 - update / recipe.schedule)
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rise * fall
        ids, labels = _batch(tokenizer, rng, recipe.batch)
        loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += int((ids != tokenizer.pad_token_id).sum())
        if (update + 1) % 50 == 0:
            seconds = time.perf_counter() - start
            print(f"update {update + 1}/{recipe.updates} loss {loss.item():.4f} tokens {tokens} {seconds:.0f} s", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "recipe.json").write_text(json.dumps({**asdict(recipe), "tokens": tokens}, indent=2) + "\n")


def _batch(
    tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids ``[B, T]`` and labels: the loss is on the solution and the end, not on the problem."""
    chains = [draw_chain(rng, DIFFICULTY) for _ in range(size)]
    prompts = [chain.text + "\n" for chain in chains]
    solutions = [worked_solution(chain, rng=rng, restate=RESTATE) for chain in chains]
    whole = tokenizer([p + s for p, s in zip(prompts, solutions, strict=True)])["input_ids"]
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    width = max(map(len, whole)) + 1
    ids = torch.full((size, width), tokenizer.pad_token_id)
    labels = torch.full((size, width), -100)
    for row, (tokens, prompt) in enumerate(zip(whole, lengths, strict=True)):
        tokens = [*tokens, tokenizer.eos_token_id]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return ids, labels


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="directory for the checkpoint")
    parser.add_argument("--updates", type=int, help="train for this many updates instead of the recipe's")
    options = parser.parse_args()
    recipe = RECIPES[options.model]
    if options.updates:
        recipe = Recipe(**{**asdict(recipe), "updates": options.updates})
    train(recipe, options.out)


if __name__ == "__main__":
    main()
