"""Trains the stored models: ``python -m benchmarks.worlds.digits.train policy --out DIR`` (or ``trunk``).

Both are ordinary language models of worked solutions. The policy is stopped early, so that it makes
mistakes. The trunk is trained for longer, and its texts contain slips that the writer corrects at once, as
real texts do; the base of a reward model has usually read more than the policy it judges. Neither has seen a
text of the policy, or a label of its steps or outcomes.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.worlds.digits import Difficulty, build_tokenizer, draw_chain, worked_solution

RESTATE = 0.04  # share of lines that are followed by a restatement, so that neutral steps occur


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Shape and training of one model: the first ``updates`` of a schedule of ``schedule``."""

    layers: int
    hidden: int
    updates: int
    schedule: int
    batch: int = 32
    learning_rate: float = 2e-3
    slip: float = 0.0
    seed: int = 0


RECIPES = {
    "policy": Recipe(layers=4, hidden=128, updates=480, schedule=700, seed=1),
    "trunk": Recipe(layers=4, hidden=128, updates=3000, schedule=3000, slip=0.15, seed=1),
}


def small_llama(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int, layers: int, readers: int, context: int
) -> LlamaForCausalLM:
    """A Llama with random weights, of four heads that share ``readers`` heads of keys and values."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=readers,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def train(recipe: Recipe, out: Path, *, save_every: int = 0) -> None:
    """Train from scratch and write an ordinary transformers checkpoint with its tokenizer to ``out``."""
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    tokenizer = build_tokenizer()
    model = small_llama(tokenizer, hidden=recipe.hidden, layers=recipe.layers, readers=2, context=256)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.05
    )
    start, tokens = time.perf_counter(), 0
    for update in range(recipe.updates):
        rise = min(1.0, (update + 1) / 100)
        fall = max(0.02, 1 - update / recipe.schedule)
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rise * fall
        ids, labels = _batch(tokenizer, rng, recipe)
        loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        tokens += int((ids != tokenizer.pad_token_id).sum())
        if (update + 1) % 50 == 0:
            rate = tokens / (time.perf_counter() - start)
            print(
                f"update {update + 1}: loss {loss.item():.4f}, {tokens} tokens, {rate:.0f} a second",
                flush=True,
            )
        if save_every and (update + 1) % save_every == 0:
            _save(model, tokenizer, replace(recipe, updates=update + 1), out / f"update-{update + 1}")
    _save(model, tokenizer, recipe, out)


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe, out: Path) -> None:
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n")


def _batch(
    tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator, recipe: Recipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids ``[B, T]`` and labels: the loss is on the solution and the end, not on the problem."""
    chains = [draw_chain(rng, Difficulty()) for _ in range(recipe.batch)]
    prompts = [chain.text + "\n" for chain in chains]
    solutions = [worked_solution(chain, rng=rng, restate=RESTATE, slip=recipe.slip) for chain in chains]
    token_ids = tokenizer([p + s for p, s in zip(prompts, solutions, strict=True)])["input_ids"]
    lengths = [len(ids) for ids in tokenizer(prompts)["input_ids"]]
    width = max(map(len, token_ids)) + 1
    ids = torch.full((len(token_ids), width), tokenizer.pad_token_id)
    labels = torch.full((len(token_ids), width), -100)
    for row, (tokens, prompt) in enumerate(zip(token_ids, lengths, strict=True)):
        tokens = [*tokens, tokenizer.eos_token_id]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, prompt : len(tokens)] = torch.tensor(tokens[prompt:])
    return ids, labels


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True, help="directory for the checkpoint")
    parser.add_argument("--updates", type=int, help="train for this many updates instead of the recipe's")
    parser.add_argument("--seed", type=int, help="another seed than the recipe's")
    parser.add_argument("--save-every", type=int, default=0, help="also keep a checkpoint each N updates")
    options = parser.parse_args()
    changes = {
        name: getattr(options, name) for name in ("updates", "seed") if getattr(options, name) is not None
    }
    train(replace(RECIPES[options.model], **changes), options.out, save_every=options.save_every)


if __name__ == "__main__":
    main()
