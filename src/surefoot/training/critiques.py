"""Training data of a generative verifier: critiques that agree with gold labels on every step.

ThinkPRM (Khalifa et al., arXiv 2504.16828, section 3): several chains are sampled for each labelled prefix;
one is used only if all its verdicts can be read and all match the gold step labels, and if it is not too
long; correct and wrong solutions are balanced; what follows the last verdict is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.labels import LabelRule, Neutral
from surefoot.models.kinds.verifier_format import CritiqueError, VerifierFormat
from surefoot.models.kinds.yes_no import single_token
from surefoot.policies.prompts import render_chat, special_tokens
from surefoot.protocols import LabelledTrace, Policy, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Record, Usage
from surefoot.training.examples import Example, ExampleSet


class TraceCritiques(Record):
    """Critiques of one trace: a line of the file that ``surefoot label FILE critiques`` writes."""

    trace_id: str
    policy: str
    """The model that wrote them."""
    texts: tuple[str, ...]
    """As they were written, without the format's opening."""
    error: str | None = None
    """Why there are fewer than were asked for."""
    usage: Usage = Usage()


async def sample_critiques(
    policy: Policy,
    items: Sequence[ProblemTrace],
    form: VerifierFormat,
    *,
    chains: int = 4,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[TraceCritiques]:
    """``chains`` critiques of each trace by ``policy``, in order; fewer, with the error, where it failed.

    ``sampling`` defaults to ThinkPRM's: temperature 0.1, at most 4096 tokens. It stops at the format's end.
    Raises ``ScoreError`` for a trace without steps or text.
    """
    sampling = replace(sampling or Sampling(temperature=0.1, max_tokens=4096), stop=(form.end,))
    special = special_tokens(getattr(policy, "tokenizer", None))  # a policy in this process has one
    prompts = [form.prompt(item, special) for item in items]
    requests = [
        SampleRequest(prompt=prompt, prefix=form.opening, n=chains, seed=seed, sampling=sampling)
        for prompt in prompts
    ]
    return [
        TraceCritiques(
            trace_id=item.trace.id,
            policy=policy.name,
            texts=tuple(completion.text for completion in result.completions),
            error=result.error,
            usage=result.usage,
        )
        for item, result in zip(items, await policy.sample(requests), strict=True)
    ]


def build_critique_examples(
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[LabelledTrace],
    critiques: Sequence[Sequence[str]],
    form: VerifierFormat,
    *,
    max_tokens: int = 4096,
    neutral: Neutral = "good",
    balance: bool = True,
    seed: int = 0,
) -> ExampleSet:
    """Filter critiques against the gold correctness labels and encode those that remain.

    Gold labels are needed on every step up to the first -1, or on all; ``neutral`` says what 0 is
    (``drop`` leaves such traces out). ``max_tokens`` bounds the critique. With ``balance`` as many examples
    of correct as of wrong solutions stay, chosen with ``seed``. Learned is the critique up to its last
    verdict, the format's closing question and the correct answer to it; an example's only target is 1 if the
    gold labels, and so the critique, find no error, else 0. ``dropped`` counts critiques by reason.

    Raises ``TrainingError`` if nothing is left, saying why.
    """
    dropped: Counter[str] = Counter()
    examples: list[Example] = []
    for item, texts in zip(items, critiques, strict=True):
        gold = _gold(item, neutral)
        if gold is None:
            dropped["no gold label on some step"] += len(texts)
            continue
        accepted: set[str] = set()
        for text in texts:
            critique = _accepted(text, gold, form, len(item.trace.steps), dropped)
            if critique is None:
                continue
            if critique in accepted:
                dropped["repeated"] += 1
                continue
            accepted.add(critique)
            example = _encode(tokenizer, form, item, critique, all(gold))
            if len(example.positions) > max_tokens:
                dropped["too long"] += 1
                continue
            examples.append(example)
    if balance:
        examples = _balanced(examples, dropped, seed)
    if not examples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "the file is empty"
        raise TrainingError(f"no critique is left to train on: {reasons}")
    return ExampleSet(examples=examples, dropped=dropped)


def _accepted(
    text: str, gold: tuple[bool, ...], form: VerifierFormat, steps: int, dropped: Counter[str]
) -> str | None:
    """The critique up to its last verdict; ``None``, with the reason counted, if it is left out."""
    try:
        critique = form.read(text, steps)
    except CritiqueError as error:
        dropped[f"unreadable: {error}"] += 1
        return None
    if critique.verdicts == gold:
        return critique.text
    same_end = all(critique.verdicts) == all(gold)
    dropped["correct in the end, a step verdict differs" if same_end else "verdict is wrong"] += 1
    return None


def _gold(item: LabelledTrace, neutral: Neutral) -> tuple[bool, ...] | None:
    """Gold verdicts up to the first error; ``None`` if one is missing or labels of a step disagree."""
    rule, gold = LabelRule(neutral=neutral, good_above=None), []
    for step in range(len(item.trace.steps)):
        labels = {
            label.value: label
            for label in item.labels
            if label.step == step and label.kind == "correctness" and label.value is not None
        }
        good = rule.good(*labels.values()) if len(labels) == 1 else None
        if good is None:
            return None
        gold.append(good)
        if not good:
            break
    return tuple(gold) or None


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    form: VerifierFormat,
    item: LabelledTrace,
    critique: str,
    correct: bool,
) -> Example:
    """Tokens as the verifier will see them: prompt with opening, critique, question, answer, end."""
    pair = ProblemTrace(problem=item.problem, trace=item.trace)
    prompt = form.prompt(pair, special_tokens(tokenizer))
    special = isinstance(prompt, str)
    if not isinstance(prompt, str):
        prompt = render_chat(tokenizer, prompt)
    prefix = prompt + form.opening
    answer = _answer(tokenizer, form, correct)
    ids = list(tokenizer(prefix + critique + form.closing + answer, add_special_tokens=special)["input_ids"])
    head = list(tokenizer(prefix, add_special_tokens=special)["input_ids"])
    shared = next((at for at, (a, b) in enumerate(zip(ids, head, strict=False)) if a != b), len(head))
    if tokenizer.eos_token_id is not None and ids[-1] != tokenizer.eos_token_id:
        ids.append(tokenizer.eos_token_id)
    learned = range(max(1, shared), len(ids))  # nothing comes before a first token to predict it
    return Example(
        trace_id=item.trace.id, ids=tuple(ids), positions=tuple(learned), targets=(float(correct),)
    )


def _answer(tokenizer: PreTrainedTokenizerBase, form: VerifierFormat, correct: bool) -> str:
    """The first spelling that is one token after the question, as the reader of the odds wants it."""
    for spelling in form.yes if correct else form.no:
        if single_token(tokenizer, form.closing, spelling) is not None:
            return spelling
    raise TrainingError(
        f"no spelling of {'yes' if correct else 'no'} is a single token after the question; change the format"
    )


def _balanced(examples: list[Example], dropped: Counter[str], seed: int) -> list[Example]:
    sides = [
        [n for n, example in enumerate(examples) if example.targets == (float(side),)]
        for side in (True, False)
    ]
    fewest = min(map(len, sides))
    rng = np.random.default_rng(seed)
    chosen: set[int] = set()
    for name, side in zip(("correct", "wrong"), sides, strict=True):
        chosen |= {side[index] for index in rng.permutation(len(side))[:fewest].tolist()}
        if len(side) > fewest:
            dropped[f"balance: {name} solutions"] += len(side) - fewest
    return [example for number, example in enumerate(examples) if number in chosen]
