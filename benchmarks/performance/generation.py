"""Speed of sampling in this process: tokens per CPU second, against `generate` and a lean loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

import torch
from transformers import DynamicCache

from benchmarks.common.figures import Figures, arguments, show, times, write
from benchmarks.worlds.digits import POLICY, generate_problems, parse_problem, worked_solution
from surefoot.policies import TransformersPolicy
from surefoot.protocols import SampleRequest, Sampling
from surefoot.records import Problem

ROWS = 256
"""Rows decoded at once, for all."""
Tokens = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Prompts with so many samples each."""

    name: str
    policy: TransformersPolicy
    requests: list[SampleRequest]
    max_tokens: int

    @property
    def rows(self) -> list[Tokens]:
        """The tokens of each sample's prompt, sorted by length."""
        ids = [
            tuple(self.policy.tokenizer(request.prompt + request.prefix)["input_ids"])
            for request in self.requests
        ]
        rows = [row for row, request in zip(ids, self.requests, strict=True) for _ in range(request.n)]
        return sorted(rows, key=lambda row: (len(row), row))


def best_of_n(
    policy: TransformersPolicy,
    problems: Sequence[Problem],
    n: int,
    max_tokens: int,
    name: str = "best_of_16",
) -> Workload:
    """``n`` solutions of each problem."""
    sampling = Sampling(max_tokens=max_tokens)
    requests = [
        SampleRequest(prompt=problem.text + "\n", n=n, seed=0, sampling=sampling) for problem in problems
    ]
    return Workload(name=name, policy=policy, requests=requests, max_tokens=max_tokens)


def rollouts(policy: TransformersPolicy, problems: Sequence[Problem], n: int, max_tokens: int) -> Workload:
    """``n`` completions after every step of a right solution."""
    sampling = Sampling(max_tokens=max_tokens)
    requests = []
    for problem in problems:
        lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
        requests += [
            SampleRequest(
                prompt=problem.text + "\n", prefix="".join(lines[:at]), n=n, seed=0, sampling=sampling
            )
            for at in range(1, len(lines))
        ]
    return Workload(name="rollouts", policy=policy, requests=requests, max_tokens=max_tokens)


@torch.inference_mode()
def transformers_generate(work: Workload) -> int:
    """Tokens written by ``model.generate``."""
    model, tokenizer = work.policy.model, work.policy.tokenizer
    end = model.generation_config.eos_token_id
    prompts = [(ids, len(list(same))) for ids, same in groupby(work.rows)]
    written = 0
    for _, group in groupby(prompts, key=lambda prompt: prompt[1]):
        batch = list(group)
        samples = batch[0][1]
        size = max(1, ROWS // samples)
        for start in range(0, len(batch), size):
            ids, mask = left_padded([prompt for prompt, _ in batch[start : start + size]])
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=samples,
                max_new_tokens=work.max_tokens,
                pad_token_id=tokenizer.pad_token_id or 0,
            )
            written += count(out[:, ids.shape[1] :], end)
    return written


@torch.inference_mode()
def lean_loop(work: Workload) -> int:
    """Tokens written by a loop for speed."""
    model = work.policy.model
    end = model.generation_config.eos_token_id
    written = 0
    rows = work.rows
    for start in range(0, len(rows), ROWS):
        batch = rows[start : start + ROWS]
        unique = list(dict.fromkeys(batch))
        ids, mask = left_padded(unique)
        spread = torch.tensor([unique.index(row) for row in batch])
        cache = DynamicCache(config=model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
        cache.batch_select_indices(spread)
        logits, mask = out.logits[spread, -1], mask[spread]
        positions = mask.sum(1, keepdim=True)
        done = torch.zeros(len(batch), dtype=torch.bool)
        for turn in range(work.max_tokens):
            tokens = torch.multinomial(logits.softmax(-1), 1)
            written += int((~done).sum())
            done |= tokens[:, 0] == end
            if turn == work.max_tokens - 1 or done.all():
                break
            if done.float().mean() > 0.25:
                live = (~done).nonzero()[:, 0]
                cache.batch_select_indices(live)
                mask, positions, tokens, done = mask[live], positions[live], tokens[live], done[live]
            mask = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
            out = model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                logits_to_keep=1,
            )
            logits, positions = out.logits[:, -1], positions + 1
    return written


def ours(work: Workload) -> int:
    """Tokens written by the policy."""
    results = asyncio.run(work.policy.sample(work.requests))
    return sum(result.usage.completion_tokens for result in results)


def left_padded(rows: Sequence[Tokens]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, ``[B, T]``."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def count(tokens_bt: torch.Tensor, end: int | list[int]) -> int:
    """Tokens up to and with the first end token of each row."""
    ends = torch.isin(tokens_bt, torch.tensor(end))
    return int((ends.cumsum(1) - ends.int() == 0).sum())


WAYS: dict[str, Callable[[Workload], int]] = {
    "surefoot": ours,
    "transformers": transformers_generate,
    "lean_loop": lean_loop,
}


def measure(work: Workload, repeats: int) -> Figures:
    """Rates of all in turn, and the figures."""
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for repeat in range(repeats):
        for name, way in WAYS.items():
            start = time.process_time()
            tokens = way(work)
            seconds = time.process_time() - start
            rates[name].append(tokens / seconds)
            rate = f"{tokens:7} tokens {seconds:7.2f} s {tokens / seconds:8.0f} tokens/s"
            print(f"  {work.name} {repeat + 1}: {name:13} {rate}", flush=True)
    rate = median(rates["surefoot"])
    return [
        times(
            f"vs_{name} ({work.name})",
            [ours / theirs for ours, theirs in zip(rates["surefoot"], rates[name], strict=True)],
            tokens_per_second=rate,
        )
        for name in ("transformers", "lean_loop")
    ]


def main() -> None:
    """Run the comparison."""
    parser = arguments(__doc__, "a fourth of the problems, two repeats")
    parser.add_argument("--model", type=Path, help="a transformers checkpoint, sampled as well")
    parser.add_argument("--repeats", type=int, help="default 5")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = options.repeats or (2 if options.quick else 5)
    problems = generate_problems(16 if options.quick else 64, seed=11)
    policy = TransformersPolicy.from_pretrained(POLICY, batch_size=ROWS)
    work = [best_of_n(policy, problems, 16, 96), rollouts(policy, problems, 8, 96)]
    if options.model:
        real = TransformersPolicy.from_pretrained(options.model, batch_size=ROWS)
        work.append(best_of_n(real, problems[:4], 16, 64, name=options.model.name))
    write(options, [figure for each in work for figure in show(measure(each, repeats))])


if __name__ == "__main__":
    main()
