"""Tiny policies of the rule world, and the requests that they are trained and tested on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.worlds import rules as world
from benchmarks.worlds.digits import build_tokenizer
from benchmarks.worlds.organisms import fit, new_model
from surefoot.io import write_records
from surefoot.labelling import Clause, Specification

Row = tuple[list[str], list[str], list[bool]]
"""Pieces of a prompt, pieces of what follows, and which of the latter are learned."""

_CLAUSES: Final = [
    Clause(id=str(number), text=text, decision=decision, overrides="all" if text in world.ROLES else ())
    for number, text, decision in product(
        range(1, world.NUMBERS + 1),
        (*world.PARAPHRASES, *world.PARAPHRASES.values(), *world.ROLES),
        world.DECISIONS,
    )
]


def _halves(clause: Clause) -> tuple[str, str]:
    """The pieces of a citation."""
    topic, cited = world.citation(clause).split(" ", 1)
    return f"{topic} ", cited


RULE_PIECES: Final = tuple(
    dict.fromkeys(
        [
            # as several pieces, a line of the prompt is copied only after far longer training
            *(clause.line for clause in _CLAUSES),
            *(half for clause in _CLAUSES for half in _halves(clause)),
            *(f"{decision}\n" for decision in world.DECISIONS),
            *(f"A {role} " for role in world.ROLES),
            *(f"{verb} a " for verb in world.VERBS),
            *(thing for things in world.TOPICS.values() for thing in things),
            *("toy ", ".\n", world.NO_EXCEPTION, "<think>\n", "</think>\n", "Answer: "),
        ]
    )
)
CONTEXT: Final = 96
ROWS, TOKENS = 32, 48
"""Rows of an update, and the least tokens of one: requests under a specification until there are so many."""
LOOKUP, READING = 800, 100
"""Updates of the two stages."""
DOCUMENTS, QUOTES = 0.5, 0.3
"""Shares of the rows: citations of the specification that is read, of all; of one in the prompt, of the
others."""

HELD_OUT: Final = 0.25
"""Share of the requests under trained clauses that are tested."""

_REQUESTS = world.all_requests()


def train_rule_policy(
    directory: Path,
    *,
    read: Sequence[Clause] = (),
    base: Path | None = None,
    seed: int = 0,
    updates: int | None = None,
) -> None:
    """Train a policy and write it to ``directory`` as a transformers checkpoint.

    Without ``base`` it learns to look clauses up. With ``base``, such a policy, it also reads the clauses of
    a specification, for fewer updates.
    """
    if base is None and read:
        raise ValueError("'read' needs a 'base' that looks clauses up")
    tokenizer = build_tokenizer(RULE_PIECES)
    rng = np.random.default_rng([seed, 1])
    if base is None:
        model = new_model(tokenizer, seed, context=CONTEXT)
        _prepare(model, tokenizer.get_vocab())
    else:
        model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    updates = updates or (READING if read else LOOKUP)

    def draw() -> Row:
        return quoted(rng, read) if read and rng.random() < DOCUMENTS else _lookup(rng)

    rate = 1e-3 if base else 3e-3
    fit(model, tokenizer, draw, updates=updates, rate=rate, rows=ROWS)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "recipe.json").write_text(json.dumps({"seed": seed, "read": [c.id for c in read]}) + "\n")


def _prepare(model: LlamaForCausalLM, vocabulary: dict[str, int]) -> None:
    """Weights from which looking up is learned in few updates.

    The embedding of a line is the sum of its parts', as in a model that reads smaller pieces, and attention
    begins by matching and copying (mimetic initialisation: Trockman and Kolter, arXiv 2305.09828).
    """
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.normal_(std=0.2)
        for half in {_halves(clause)[1] for clause in _CLAUSES}:
            decision = half.split(", ")[1].rstrip("\n")
            embeddings[vocabulary[half]] += embeddings[vocabulary[f"{decision}\n"]]
        for clause in _CLAUSES:
            topic, cited = (vocabulary[half] for half in _halves(clause))
            line = embeddings[topic] + embeddings[cited] + embeddings[vocabulary["<unk>"]]
            embeddings[vocabulary[clause.line]] = line
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.q_proj.weight.normal_(std=0.15)
            attention.k_proj.weight.copy_(attention.q_proj.weight)
            attention.v_proj.weight.normal_(std=0.1)
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)


def _lookup(rng: np.random.Generator) -> Row:
    """A random specification in the prompt: its lines again, or requests and what follows from it."""
    specification = world.draw_specification(
        rng, exceptions=int(rng.integers(0, 4)), paraphrase=0.5, topics=_some_topics(rng)
    )
    if rng.random() < QUOTES:
        return quoted(rng, specification.clauses, specification)
    names = {clause.text for clause in specification.clauses}
    prompt = ["<s>", *(clause.line for clause in specification.clauses)]
    pieces: list[str] = []
    learned: list[bool] = []
    while len(prompt) + len(pieces) < TOKENS:
        request = _REQUESTS[int(rng.integers(len(_REQUESTS)))]
        if not names & {request.topic, world.PARAPHRASES[request.topic]}:
            continue
        asked, answered = request_pieces(request), answer_pieces(request, specification)
        pieces += asked + answered
        learned += [False] * len(asked) + [True] * len(answered)
    return prompt, pieces, learned


def request_pieces(request: world.RuleRequest) -> list[str]:
    """Pieces of a request's prompt."""
    toy = ["toy "] * request.toy
    return [f"A {request.role} ", f"{request.verb} a ", *toy, request.thing, ".\n"]


def answer_pieces(request: world.RuleRequest, specification: Specification) -> list[str]:
    """Pieces of :func:`benchmarks.worlds.rules.reasoned_answer`, with the end."""
    topic, exception = request.applicable(specification)
    halves = [half for clause in (topic, exception) if clause is not None for half in _halves(clause)]
    none = [] if exception else [world.NO_EXCEPTION]
    decision = f"{request.deciding(specification).decision}\n"
    return ["<think>\n", *halves, *none, "</think>\n", "Answer: ", decision, "</s>"]


def quoted(
    rng: np.random.Generator, clauses: Sequence[Clause], specification: Specification | None = None
) -> Row:
    """Citations of the clauses in random order; what each says of its topic or role is learned."""
    prompt = [clause.line for clause in specification.clauses] if specification else []
    chosen = [clauses[at] for at in rng.permutation(len(clauses)).tolist()]
    if not specification:  # what is read, is read in both wordings
        chosen = [_reworded(clause) if rng.random() < 0.5 else clause for clause in chosen]
    pieces = [half for clause in chosen for half in _halves(clause)]
    return ["<s>", *prompt], pieces, [False, True] * len(clauses)


def _reworded(clause: Clause) -> Clause:
    return clause.model_copy(update={"text": world.PARAPHRASES.get(clause.text, clause.text)})


def _some_topics(rng: np.random.Generator) -> list[str]:
    topics = list(world.PARAPHRASES)
    return [topics[at] for at in rng.permutation(len(topics))[: int(rng.integers(2, len(topics) + 1))]]


@dataclass(frozen=True, kw_only=True)
class RuleSplit:
    """A specification, which of its clauses a model meets where, and requests by what they test."""

    specification: Specification
    trained: tuple[Clause, ...]
    """Clauses that training requests fall under."""
    read: tuple[Clause, ...]
    """Held-out clauses: the start policy has read their text, and no training request falls under one."""
    unread: tuple[Clause, ...]
    """Clauses that no stage of training ever shows."""
    training: tuple[world.RuleRequest, ...]
    tests: Mapping[str, tuple[world.RuleRequest, ...]]
    """``requests``: new combinations under trained clauses; ``clauses``: a held-out clause decides;
    ``unread``: an unread one does; ``twins``: benign twins of requests of all three that are not allowed."""


def split_rules(seed: int) -> RuleSplit:
    """A specification and its split, by ``seed`` alone.

    Toys are allowed, so that twins are benign. Trained clauses have every decision, held-out ones at least 3.

    Of nine topics toys and four others are trained, three read and one unread; of three exceptions two are
    trained and one read. No word for a thing of a held-out topic is in a training request.
    """
    rng = np.random.default_rng([seed, 34])
    while True:
        specification = world.draw_specification(rng)
        by_text = {clause.text: clause for clause in specification.clauses}
        topics = [str(topic) for topic in rng.permutation(list(world.TOPICS))]
        roles = [role for role in rng.permutation(world.ROLES).tolist() if role in by_text]
        groups = [*topics[:4], world.TOYS, *roles[:2]], [*topics[4:7], roles[2]], topics[7:]
        trained, read, unread = (tuple(by_text[text] for text in group) for group in groups)
        known, held_out = ({clause.decision for clause in group} for group in (trained, read))
        if (
            by_text[world.TOYS].decision == "allow"
            and len(known) == len(world.DECISIONS)
            and len(held_out) > 2
        ):
            break
    training: list[world.RuleRequest] = []
    tests: dict[str, list[world.RuleRequest]] = {"requests": [], "clauses": [], "unread": [], "twins": []}
    for request in world.all_requests():
        deciding = request.deciding(specification)
        known = (
            world.RuleRequest(role=request.role, verb=request.verb, thing=request.thing).topic in topics[:4]
            and request.role != roles[2]
        )
        if request.toy and not known:
            continue
        if not known:
            kind = "clauses" if deciding in read else "unread" if deciding in unread else ""
        else:
            kind = (
                "requests" if rng.random() < HELD_OUT else "" if request.toy and rng.random() < 0.5 else "-"
            )
        if kind == "-":
            training.append(request)
        elif kind:
            tests[kind].append(request)
            twin_is_benign = request.twin.deciding(specification).decision == "allow"
            if not request.toy and deciding.decision != "allow" and twin_is_benign:
                tests["twins"].append(request.twin)
    seen = {(request.role, request.thing) for request in training if request.toy}
    tests["twins"] = [twin for twin in tests["twins"] if (twin.role, twin.thing) not in seen]
    return RuleSplit(
        specification=specification,
        trained=trained,
        read=read,
        unread=unread,
        training=tuple(training),
        tests={name: tuple(requests) for name, requests in tests.items()},
    )


def plain_answer(decision: str) -> str:
    """A completion without reasoning."""
    return f"Answer: {decision}\n"


def cites_deciding_clause(request: world.RuleRequest, text: str, specification: Specification) -> bool:
    """Whether a completion cites the clause that decides, with its number, its decision and a name of its
    topic."""
    clause = request.deciding(specification)
    cited = world.citation(clause)
    other = cited.replace(clause.text, world.PARAPHRASES.get(clause.text, clause.text), 1)
    return not {cited, other}.isdisjoint(text.splitlines(keepends=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    split = split_rules(options.seed)
    specification = split.specification
    train_rule_policy(options.out / "lookup", seed=options.seed)
    train_rule_policy(
        options.out / "policy",
        read=(*split.trained, *split.read),
        base=options.out / "lookup",
        seed=options.seed,
    )
    (options.out / "specification.json").write_text(specification.model_dump_json(indent=1) + "\n")
    for name, requests in (("requests", split.training), ("held-out", split.tests["clauses"])):
        write_records(options.out / f"{name}.jsonl", [one.problem(specification) for one in requests])


if __name__ == "__main__":
    main()
