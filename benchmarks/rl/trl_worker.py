"""TRL's GRPO trainer on given prompts, in an interpreter that has TRL 1.13."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

DEFAULTS: dict[str, Any] = {
    "warm": 2,
    "max_tokens": 96,
    "temperature": 1.0,
    "rows_per_pass": None,
    "learning_rate": 3e-4,
    "clip": 1.0,
    "beta": 0.0,
    "answer_pattern": r"(?m)^Answer: (.*)$",
    "threads": 1,
    "seed": 0,
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Clock(TrainerCallback):
    """Notes when each round is done, and what was logged of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in CLOCKS}
        self.logged: dict[str, list[float]] = {"reward": [], "completions/mean_length": [], "loss": []}

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.begun = {name: clock() for name, clock in CLOCKS.items()}

    def on_step_end(self, *_: object, **__: object) -> None:
        for name, clock in CLOCKS.items():
            self.seconds[name].append(clock() - self.begun[name])

    def on_log(self, *_: object, logs: dict[str, Any], **__: object) -> None:
        for name, values in self.logged.items():
            if name in logs:
                values.append(float(logs[name]))


def main() -> None:
    """Train, and print what happened."""
    given = DEFAULTS | json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        trainer(given, out, clock).train()
    warm, rows = given["warm"], given["problems"] * given["samples"]
    timed = rows * (given["updates"] - warm)
    rates = {
        name: timed / (times[-1] - (times[warm - 1] if warm else 0.0))
        for name, times in clock.seconds.items()
    }
    found = {
        "samples_per_second": rates,
        "seconds": clock.seconds,
        "rewards": clock.logged["reward"],
        "mean_tokens": clock.logged["completions/mean_length"],
        "losses": clock.logged["loss"],
        "version": trl.__version__,
    }
    print(json.dumps(found))


def trainer(given: dict[str, Any], out: str, clock: Clock) -> GRPOTrainer:
    """The trainer with the settings that are compared; the rest is TRL's own."""
    rows = given["problems"] * given["samples"]
    rows_per_pass = given["rows_per_pass"] or rows
    if rows % rows_per_pass:
        raise SystemExit(f"rows_per_pass ({rows_per_pass}) must divide problems * samples ({rows})")
    model = AutoModelForCausalLM.from_pretrained(given["model"], dtype="float32")
    # the same settings as the other side's, whatever the configuration's defaults are
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=given["learning_rate"], weight_decay=0.0, betas=(0.9, 0.99)
    )
    pattern = re.compile(given["answer_pattern"])

    def exact(completions: list[str], answer: list[str], **_: object) -> list[float]:
        found = [pattern.findall(text)[-1:] for text in completions]
        return [float(one == [right]) for one, right in zip(found, answer, strict=True)]

    needed = given["updates"] * given["problems"]
    prompts = [given["prompts"][number % len(given["prompts"])] for number in range(needed)]
    return GRPOTrainer(
        model=model,
        reward_funcs=exact,
        args=GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=rows_per_pass,
            gradient_accumulation_steps=rows // rows_per_pass,
            num_generations=given["samples"],
            max_steps=given["updates"],
            max_completion_length=given["max_tokens"],
            temperature=given["temperature"],
            top_k=0,
            learning_rate=given["learning_rate"],
            max_grad_norm=given["clip"],
            beta=given["beta"],
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=given["seed"],
        ),
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(given["model"], padding_side="left"),
        callbacks=[clock],
        optimizers=(optimiser, LambdaLR(optimiser, lambda _: 1.0)),
    )


if __name__ == "__main__":
    main()
