"""TRL's GRPO on a small tool environment: a reward for each turn against one for the whole run.

    pip install '.[trl]' matplotlib
    python recipes/turn-rewards/run.py --out turn-rewards

A policy of two layers moves on a line of eight places with four tools and then says that it is done. It
begins with cloned runs of which two turns of five are right. Both arms have the same start, trainer,
baseline, samples and updates; only the rewards differ:

turns: the outcome, and for each turn the verdict of a rule that replays the run: 1 if the call brings the
    goal nearer, 0 if it leads away, ½ if neither; 1 for the end at the goal, ½ for any other.
outcome: 1 for a run that ends at the goal, else 0.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from matplotlib.figure import Figure
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig

from surefoot.records import Message, ToolCall, Trace
from surefoot.rl import Effective, LeaveOneOut, Outcome, turn_rewards
from surefoot.rl.engines import TurnGRPOTrainer
from surefoot.segment import segment_trace

PLACES, TURNS = 8, 6
TOOLS = {"u": 1, "d": -1, "j": 3, "k": -3}
DONE = "e"
CREDIT = {"turns": Effective(alpha=1.0, scores="advantages"), "outcome": Outcome()}
WORDS = [*map(str, range(PLACES)), ">", "=", ";", *TOOLS, DONE, "[pad]"]


def moved(place: int, tool: str) -> int:
    """Where a call leads; a call over an end of the line does nothing."""
    to = place + TOOLS[tool]
    return to if 0 <= to < PLACES else place


def distances(goal: int) -> dict[int, int]:
    """Calls that each place needs to the goal at least."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        place = queue.popleft()
        for start in range(PLACES):
            if start not in found and any(moved(start, tool) == place for tool in TOOLS):
                found[start] = found[place] + 1
                queue.append(start)
    return found


def recorded(start: int, goal: int, actions: list[str]) -> Trace:
    """The run as an agent's run: a call and its result for each tool, an answer at the end."""
    messages, place = [Message(role="user", content=f"From {start} to {goal}.")], start
    for number, action in enumerate(actions):
        if action in TOOLS:
            call = ToolCall(id=str(number), name=action, arguments="{}")
            place = moved(place, action)
            messages.append(Message(role="assistant", tool_calls=(call,)))
            messages.append(Message(role="tool", content=str(place), tool_call_id=call.id))
        else:
            messages.append(Message(role="assistant", content="done" if action == DONE else "(unreadable)"))
    return segment_trace(Trace(problem_id=f"{start}-{goal}", messages=tuple(messages)))


def verdicts(trace: Trace, start: int, goal: int) -> list[float | None]:
    """One a step, from 0 to 1; ``None`` for a result."""
    scores: list[float | None] = []
    far, place = distances(goal), start
    for number, step in enumerate(trace.steps):
        message = trace.messages[step.message]
        if message.role != "assistant":
            scores.append(None)
        elif message.tool_calls:
            to = moved(place, message.tool_calls[0].name)
            scores.append((1 + far[place] - far[to]) / 2)
            place = to
        else:
            scores.append(1.0 if trace.step_text(number) == "done" and place == goal else 0.5)
    return scores


def tokenizer_of_words() -> PreTrainedTokenizerFast:
    """One token a word."""
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[pad]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[pad]", eos_token=DONE)


@torch.no_grad()
def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """One episode a prompt: the policy writes one word a turn, the environment ``= place ;`` after a call."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    starts = [tuple(map(int, prompt.replace(";", "").split(">"))) for prompt in prompts]
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    places = [start for start, _ in starts]
    ids: list[list[int]] = [[] for _ in prompts]
    masks: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    actions: list[list[str]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    for turn in range(TURNS):
        if not running:
            break
        rows = [prompt_ids[row] + ids[row] for row in running]
        length = max(map(len, rows))
        batch = torch.full((len(rows), length), tokenizer.pad_token_id)
        for at, row in enumerate(rows):
            batch[at, length - len(row) :] = torch.tensor(row)
        attend = torch.stack([torch.arange(length) >= length - len(row) for row in rows]).long()
        position = (attend.cumsum(1) - 1).clamp(min=0)
        chances = model(input_ids=batch, attention_mask=attend, position_ids=position).logits
        chances = chances[:, -1].log_softmax(-1)
        drawn = torch.multinomial(chances.exp(), 1)[:, 0]
        for at, row in enumerate(list(running)):
            token, word = int(drawn[at]), WORDS[int(drawn[at])]
            ids[row].append(token)
            masks[row].append(1)
            logprobs[row].append(float(chances[at, token]))
            actions[row].append(word)
            if word not in TOOLS or turn == TURNS - 1:
                running.remove(row)
                continue
            places[row] = moved(places[row], word)
            told = tokenizer(f"= {places[row]} ;")["input_ids"]
            ids[row] += told
            masks[row] += [0] * len(told)
            logprobs[row] += [0.0] * len(told)
    reached = [
        float(acts[-1] == DONE and place == goal)
        for acts, place, (_, goal) in zip(actions, places, starts, strict=True)
    ]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": ids,
        "logprobs": logprobs,
        "env_mask": masks,
        "actions": actions,
        "outcome": reached,
    }


def rewards_of_turns(prompts: list[str], actions: list[list[str]], **_: Any) -> list[list[float | None]]:
    """From recorded runs, by the rule's verdicts of their steps."""
    rewards = []
    for prompt, acts in zip(prompts, actions, strict=True):
        start, goal = map(int, prompt.replace(";", "").split(">"))
        trace = recorded(start, goal, acts)
        rewards.append(turn_rewards(trace, verdicts(trace, start, goal)))
    return rewards


def clone_noisy_runs(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Teach the form of a run: at each turn the right act in two cases of five, else any."""
    optimiser, generator = torch.optim.AdamW(model.parameters(), lr=3e-3), torch.Generator().manual_seed(0)
    acts = [*TOOLS, DONE]
    for _ in range(300):
        texts = []
        for start, goal in torch.randint(PLACES, (32, 2), generator=generator).tolist():
            place, far, words = start, distances(goal), [f"{start} > {goal} ;"]
            noise = torch.randint(len(acts), (TURNS,), generator=generator).tolist()
            for choice, right in zip(noise, torch.rand(TURNS, generator=generator).tolist(), strict=True):
                best = DONE if place == goal else min(TOOLS, key=lambda tool: far[moved(place, tool)])
                words.append(best if right < 0.4 else acts[choice])
                if words[-1] == DONE:
                    break
                place = moved(place, words[-1])
                words.append(f"= {place} ;")
            texts.append(" ".join(words))
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        written = torch.isin(batch["input_ids"], torch.tensor(tokenizer.convert_tokens_to_ids(acts)))
        labels = batch["input_ids"].where(written, -100)
        model(**batch, labels=labels).loss.backward()
        optimiser.step()
        optimiser.zero_grad()


def policy_of(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Two layers, untrained."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def train(arm: str, seed: int, updates: int, out: Path) -> list[float]:
    """Success of the 64 runs of each update."""
    set_seed(seed)
    tokenizer = tokenizer_of_words()
    successes: list[float] = []
    pairs = [(start, goal) for start in range(PLACES) for goal in range(PLACES) if start != goal]

    def noted(**columns: Any) -> list[list[float | None]]:
        successes.append(sum(columns["outcome"]) / len(columns["outcome"]))
        return rewards_of_turns(**columns)

    model = policy_of(tokenizer)
    clone_noisy_runs(model, tokenizer)
    trainer = TurnGRPOTrainer(
        model,
        turn_rewards=noted,
        credit=CREDIT[arm],
        advantage=LeaveOneOut(),
        rollout_func=rollout,
        args=GRPOConfig(
            output_dir=str(out / f"{arm}-{seed}"),
            per_device_train_batch_size=64,
            num_generations=8,
            max_steps=updates,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            beta=0.0,
            seed=seed,
            logging_steps=updates,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"{start} > {goal} ;"} for start, goal in pairs]),
        processing_class=tokenizer,
    )
    trainer.train()
    return successes


def fixed_rules() -> dict[str, float]:
    """Success of policies that learn nothing, exact over all pairs of places."""
    pairs = [(start, goal) for start in range(PLACES) for goal in range(PLACES) if start != goal]

    def share(acts: tuple[str, ...]) -> float:
        ends = []
        for start, goal in pairs:
            place = start
            for act in acts:
                place = moved(place, act)
            ends.append(place == goal)
        return sum(ends) / len(pairs)

    def at_random(place: int, goal: int, turns: int) -> float:
        """Chance that a policy which draws every act alike ends at the goal."""
        if not turns:
            return 0.0
        on = sum(at_random(moved(place, tool), goal, turns - 1) for tool in TOOLS)
        return ((place == goal) + on) / (len(TOOLS) + 1)

    sequences = [acts for length in range(TURNS) for acts in product(TOOLS, repeat=length)]
    best = max(sequences, key=share)
    near = [distances(goal)[start] < TURNS for start, goal in pairs]
    return {
        "any act at random": sum(at_random(*pair, TURNS) for pair in pairs) / len(pairs),
        f"always {' '.join(best)} {DONE}, the best sequence": share(best),
        "follows the rule that gives the verdicts": sum(near) / len(near),
    }


def start_policy(seed: int) -> float:
    """Success of the cloned policy before training, in 1,288 runs."""
    set_seed(seed)
    tokenizer, model = tokenizer_of_words(), policy_of(tokenizer_of_words())
    clone_noisy_runs(model, tokenizer)
    accelerator = SimpleNamespace(unwrap_model=lambda own: own)
    trainer = SimpleNamespace(processing_class=tokenizer, accelerator=accelerator, model=model)
    pairs = [(start, goal) for start in range(PLACES) for goal in range(PLACES) if start != goal]
    reached = rollout([f"{start} > {goal} ;" for start, goal in pairs] * 23, trainer)["outcome"]
    return float(sum(reached) / len(reached))


def means(successes: list[float]) -> list[float]:
    """Of each 20 updates, 1,280 runs."""
    return [sum(successes[at : at + 20]) / 20 for at in range(0, len(successes) - 19, 20)]


def draw(curves: dict[str, list[list[float]]], path: Path) -> None:
    """A line a seed."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for (arm, of_arm), colour in zip(curves.items(), ("C0", "C1"), strict=True):
        for number, successes in enumerate(of_arm):
            at = [20 * (k + 1) for k in range(len(means(successes)))]
            shares = [100 * mean for mean in means(successes)]
            axes.plot(at, shares, color=colour, label=None if number else f"rewards: {arm}")
    axes.set(xlabel="updates of 64 runs", ylabel="runs that end at the goal (%)", ylim=(0, 100))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train both arms on each seed; write ``curves.json`` and ``curves.png``, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=400)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for rule, share in fixed_rules().items():
        print(f"{rule}: {100 * share:.1f} %")
    for seed in options.seeds:
        print(f"the policy before training, seed {seed}: {100 * start_policy(seed):.1f} %", flush=True)
    curves: dict[str, list[list[float]]] = {"turns": [], "outcome": []}
    for seed in options.seeds:
        for arm, of_arm in curves.items():
            begin = time.monotonic()
            of_arm.append(train(arm, seed, options.updates, options.out))
            seconds = time.monotonic() - begin
            print(f"{arm}, seed {seed}: {100 * means(of_arm[-1])[-1]:.1f} % in {seconds:.0f} s", flush=True)
            (options.out / "curves.json").write_text(json.dumps(curves))
    draw(curves, options.out / "curves.png")


if __name__ == "__main__":
    main()
