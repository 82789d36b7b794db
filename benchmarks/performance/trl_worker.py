"""TRL's PRM trainer on ready-made token ids, in an interpreter that has TRL up to 1.13 (see training.py).

    python -m benchmarks.performance.trl_worker SETTINGS.json

``SETTINGS.json`` names a model directory, examples in their order, and the optimiser's settings. Prints one
JSON line: the loss and the finishing time of every update.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForTokenClassification, AutoTokenizer, TrainerCallback
from trl.experimental.prm import PRMConfig, PRMTrainer


class Clock(TrainerCallback):
    """Notes when each update is done, and what it lost."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        self.times.append(self.clock())

    def on_log(self, *_: object, logs: dict[str, float], **__: object) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


class InOrder(PRMTrainer):
    """The examples as they come: the order is part of the comparison."""

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> SequentialSampler:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)


def main() -> None:
    """Train, and print what happened."""
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    model = AutoModelForTokenClassification.from_pretrained(given["model"], num_labels=2, dtype="float32")
    torch.nn.init.zeros_(model.score.weight)
    if model.score.bias is not None:
        torch.nn.init.zeros_(model.score.bias)
    tokenizer = AutoTokenizer.from_pretrained(given["model"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    clock = Clock(time.process_time if given["clock"] == "cpu" else time.perf_counter)
    head = list(model.score.parameters())
    trunk = [parameter for parameter in model.parameters() if all(parameter is not one for one in head)]
    rate = given["learning_rate"]
    # two outputs part twice as fast as one grows: half the rate makes their difference our one logit
    groups = [{"params": trunk, "lr": rate}, {"params": head, "lr": rate / 2}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.0, betas=(0.9, 0.98))
    trainer = InOrder(
        model=model,
        args=PRMConfig(
            output_dir=given["out"],
            per_device_train_batch_size=given["batch_size"],
            gradient_accumulation_steps=given["accumulation"],
            num_train_epochs=1,
            learning_rate=rate,
            lr_scheduler_type="linear",
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=0,
        ),
        train_dataset=Dataset.from_list(given["examples"]),
        processing_class=tokenizer,
        callbacks=[clock],
        optimizers=(optimiser, None),
    )
    trainer.train()
    print(json.dumps({"losses": clock.losses, "times": clock.times, "version": trl.__version__}))


if __name__ == "__main__":
    main()
