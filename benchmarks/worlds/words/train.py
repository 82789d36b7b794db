"""Train the language models of the lab: ``python -m benchmarks.worlds.words.train start --out DIR``.

``start`` and ``policy`` are ordinary language models of pupils' solutions, with their misconceptions;
``start`` also repeats sentences. The texts of the ``trunk`` are worked solutions, with wrong lines that the
writer takes back at once::

    Ben has Ann's 34 + 17 = 41. No, Ben has Ann's 34 + 17 = 51.

No model has seen a solution of the policy.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.worlds.words.pupils import pupil_solution
from benchmarks.worlds.words.tokens import NO, build_words_tokenizer, encode, vocabulary
from surefoot.lab import Calculation, Setting, WordProblem, draw_problem
from surefoot.lab.problems import MOST, NAMES, calculate

PAD, BEGIN, END = 0, 1, 2
TRAINING = Setting(people=(2, 4), steps=(1, 3))
"""Problems of the training texts: also graphs of one step, from which relations are learned sooner."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Shape and training of a model: the first ``updates`` of a schedule of ``schedule``."""

    phase: str
    """Its name in :data:`RECIPES`."""
    updates: int
    schedule: int
    layers: int = 5
    hidden: int = 128
    heads: int = 4
    batch: int = 32
    learning_rate: float = 2e-3
    graphs: float = 0.6
    """Share of graphs among the problems."""
    wrong: float = 0.0
    """Chance that a line comes after a wrong one that is taken back."""
    copies: float = 0.0
    """Share of texts that only repeat the sentences of a graph, from which citing is learned sooner."""
    pupils: bool = False
    """Whether the solutions are written by pupils, with their misconceptions."""
    seed: int = 0


RECIPES = {
    "start": Recipe(phase="start", updates=3000, schedule=6000, pupils=True, copies=0.3, graphs=0.75),
    "policy": Recipe(
        phase="policy",
        updates=2000,
        schedule=2000,
        learning_rate=1.8e-3,
        pupils=True,
        copies=0.05,
        graphs=0.6,
        seed=3,
    ),
    "trunk": Recipe(phase="trunk", updates=1800, schedule=1800, wrong=0.3, graphs=0.75, seed=4),
}
"""``start``, from scratch, learns to cite sentences; ``policy`` and ``trunk`` go on from it."""


def train(recipe: Recipe, out: Path, *, base: Path | None = None, save_every: int = 0) -> None:
    """Train, from scratch without a ``base``, and write a transformers checkpoint with its tokenizer."""
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM.from_pretrained(base) if base else new_model(recipe)
    model.set_attn_implementation("eager")  # for texts this short twice as fast on a CPU as torch's kernel
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimisers = (
        torch.optim.Muon(inner, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=0.05, fused=True),
    )
    batches = training_batches(recipe)
    verdicts = torch.tensor(encode(f"{NO}\n"))
    start, tokens, losses = time.process_time(), 0, []
    for update in range(1, recipe.updates + 1):
        rate = recipe.learning_rate * min(1.0, update / 100) * max(0.02, 1 - update / recipe.schedule)
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = rate
        ids, labels = next(batches)
        with torch.autocast("cpu", torch.bfloat16):
            states = model.model(input_ids=ids).last_hidden_state[:, :-1]  # causal: padding comes last
            wanted = labels[:, 1:]
            logits = model.lm_head(states[wanted >= 0])
        each = torch.nn.functional.cross_entropy(logits.float(), wanted[wanted >= 0], reduction="none")
        loss = each.mean()
        if recipe.wrong:  # a line is right or taken back: one token of ten, for which the trunk is there
            loss = loss + each[torch.isin(wanted[wanted >= 0], verdicts)].mean()
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        tokens += int((ids != PAD).sum())
        losses.append(loss.item())
        if update % 50 == 0:
            used = time.process_time() - start
            mean = sum(losses[-50:]) / 50
            print(
                f"update {update}: loss {mean:.4f}, {used:.0f} CPU seconds, {tokens / used:.0f} tokens/s",
                flush=True,
            )
        if save_every and update % save_every == 0:
            save(model, replace(recipe, updates=update), out / f"update-{update}", base)
    save(model, recipe, out, base)


def new_model(recipe: Recipe) -> LlamaForCausalLM:
    """A Llama with random weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary()),
            hidden_size=recipe.hidden,
            intermediate_size=3 * recipe.hidden,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=BEGIN,
            eos_token_id=END,
        )
    )


def save(model: LlamaForCausalLM, recipe: Recipe, out: Path, base: Path | None) -> None:
    """Write a checkpoint, its tokenizer and how it was trained, with the recipe of its ``base``."""
    model.save_pretrained(out)
    build_words_tokenizer().save_pretrained(out)
    about = {"command": f"python -m benchmarks.worlds.words.train {recipe.phase}", **asdict(recipe)}
    if base:
        about["base"] = json.loads((base / "recipe.json").read_text("utf-8"))
    (out / "recipe.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")


def training_batches(recipe: Recipe) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded ids and labels ``[B, T]``, -100 where there is no loss; rows are of like length."""
    rng = random.Random(recipe.seed)
    while True:
        rows = sorted(
            (training_row(rng, recipe) for _ in range(8 * recipe.batch)), key=lambda row: len(row[0])
        )
        batches = [rows[at : at + recipe.batch] for at in range(0, len(rows), recipe.batch)]
        rng.shuffle(batches)
        for batch in batches:
            width = len(batch[-1][0])
            ids = [row + [PAD] * (width - len(row)) for row, _ in batch]
            labels = [row + [-100] * (width - len(row)) for _, row in batch]
            yield torch.tensor(ids), torch.tensor(labels)


def training_row(rng: random.Random, recipe: Recipe) -> tuple[list[int], list[int]]:
    """Ids and labels of one text: no loss on the problem, nor on a wrong line."""
    if rng.random() < recipe.copies:
        return copying_row(rng)
    problem = draw_problem(rng, replace(TRAINING, graphs=recipe.graphs))
    ids = [BEGIN, *encode(f"{problem.text}\n")]
    labels = [-100] * len(ids)
    if recipe.pupils:
        ids += encode(pupil_solution(rng, problem))
        return [*ids, END], [*labels, *ids[len(labels) :], END]
    for label in (*problem.needed, ""):
        right = problem.quantities[label].line(label) if label else f"Answer: {problem.answer}.\n"
        if rng.random() < recipe.wrong:
            slip = encode(wrong_line(rng, problem, label).rstrip("\n"))
            ids += slip
            labels += [-100] * len(slip)
            right = NO + right
        ids += encode(right)
        labels += encode(right)
    return [*ids, END], [*labels, END]


def copying_row(rng: random.Random) -> tuple[list[int], list[int]]:
    """A graph of many people without a question, and its sentences again in another order."""
    problem = draw_problem(rng, replace(TRAINING, graphs=1.0, people=(4, 7), opinion=0.0))
    *facts, _ = problem.text.split(". ")
    ids = [BEGIN, *encode(". ".join(facts) + ".\n")]
    sentences = [f"{fact}.\n" for fact in facts]
    rng.shuffle(sentences)
    copied = encode("".join(sentences))
    return [*ids, *copied, END], [*[-100] * len(ids), *copied, END]


def wrong_line(rng: random.Random, problem: WordProblem, label: str) -> str:
    """A wrong line in place of that of ``label``, or of the answer where it is empty.

    Two of five are slips of arithmetic. The others have one or two of: another number, operation, owner or
    subject, or are the line of a quantity that is not known yet; they are calculated rightly.
    """
    numbers = [int(number) for number in re.findall(r"\d+", problem.text)]
    numbers += [quantity.value for quantity in problem.quantities.values()]
    if not label:
        wrong = rng.choice(numbers) if rng.random() < 0.5 else _near(rng, problem.answer)
        return f"Answer: {wrong if wrong != problem.answer else _near(rng, wrong)}.\n"
    if rng.random() < 0.4:
        return problem.quantities[label].line(label, _near(rng, problem.quantities[label].value))
    names = [name for name in NAMES if name in problem.text]
    for _ in range(30):
        subject, made = label, problem.quantities[label]
        if rng.random() < 0.3:
            subject = rng.choice(list(problem.quantities))
            made = problem.quantities[subject]
        for _ in range(rng.randint(1, 2)):
            subject, made = _altered(rng, subject, made, problem, numbers, names)
        if calculate(made.left, made.symbol, made.right) and made.value <= MOST:
            line = made.line(subject)
            if line not in [each.line(name) for name, each in problem.quantities.items()]:
                return line
    return problem.quantities[label].line(label, _near(rng, problem.quantities[label].value))


def _altered(
    rng: random.Random,
    subject: str,
    quantity: Calculation,
    problem: WordProblem,
    numbers: list[int],
    names: list[str],
) -> tuple[str, Calculation]:
    """A subject and a quantity with one thing changed."""
    match rng.randint(0, 5):
        case 0:
            left = rng.choice(numbers) if rng.random() < 0.8 else _near(rng, quantity.left)
            quantity = replace(quantity, left=left)
        case 1:
            right = rng.choice(numbers) if rng.random() < 0.8 else _near(rng, quantity.right)
            fact = (
                quantity.fact
                if rng.random() < 0.5
                else quantity.fact.replace(str(quantity.right), str(right))
            )
            quantity = replace(quantity, right=right, fact=fact)
        case 2:
            quantity = replace(quantity, symbol=rng.choice("+-*/"))
        case 3:
            subject = rng.choice(list(problem.quantities))
        case 4 if quantity.fact:
            fact = rng.choice([other.fact for other in problem.quantities.values()])
            words = fact.split(" ")
            if rng.random() < 0.5:
                words = [rng.choice(names) if word in names else word for word in words]
            quantity = replace(quantity, fact=" ".join(words))
        case _ if quantity.owners[0]:
            owners = rng.choice(names), rng.choice(names) if quantity.owners[1] else ""
            quantity = replace(quantity, owners=owners)
    return subject, quantity


def _near(rng: random.Random, value: int) -> int:
    """A number that differs in one digit, or by little."""
    digits = str(value)
    while True:
        if rng.random() < 0.5:
            at = rng.randrange(len(digits))
            wrong = int(digits[:at] + rng.choice("0123456789") + digits[at + 1 :])
        else:
            wrong = value + rng.randint(-11, 11)
        if wrong > 0 and wrong != value:
            return wrong


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", type=Path, help="go on from this checkpoint")
    parser.add_argument("--graphs", type=float)
    parser.add_argument("--copies", type=float)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--schedule", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--save-every", type=int, default=0)
    options = parser.parse_args()
    names = ("graphs", "copies", "updates", "schedule", "learning_rate", "seed")
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    train(
        replace(RECIPES[options.model], **changes),
        options.out,
        base=options.base,
        save_every=options.save_every,
    )


if __name__ == "__main__":
    main()
