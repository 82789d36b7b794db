"""Reasoning over rules in the rule world: deliberation against four other ways to the same budget."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.figures import Figures, arguments, figure, show, write
from benchmarks.rules.models import (
    RuleSplit,
    cites_deciding_clause,
    plain_answer,
    split_rules,
    train_rule_policy,
)
from benchmarks.worlds import rules as world
from surefoot.answers import AnswerChecker, Grader
from surefoot.labelling import Specification, VerifierLabeller, rejection
from surefoot.models import load_causal
from surefoot.policies import Loading, PromptFormat, TransformersPolicy, sample_traces
from surefoot.protocols import LabelledTrace, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, Trace
from surefoot.rl import RLConfig, Task, train_policy
from surefoot.segment import Line, segment_trace
from surefoot.stats import mean_over_runs
from surefoot.training import SFTConfig, build_cloning_examples, clone_steps, demonstrate

ANSWERS, REFUSALS, PROMPTED = "answers only", "refusals only", "specification in the prompt"
UNFILTERED, DELIBERATION = "deliberation without the filter", "deliberation"
FASTER = "answers only, 4 times the rate"
ARMS = (ANSWERS, FASTER, REFUSALS, PROMPTED, UNFILTERED, DELIBERATION)
SAMPLES = 4
"""Completions of each training request."""
SFT_TOKENS = 25_000
"""Tokens that each method is fine-tuned on, prompts and repetitions included."""
SFT = SFTConfig(batch_size=32, learning_rate=4e-4, weight_decay=0.01)
RL = RLConfig(
    updates=10, problems=16, samples=4, max_tokens=16, learning_rate=1e-4, evaluate_every=100, keep_samples=0
)
SIZES = {"requests": 60, "clauses": 120, "unread": 24, "twins": 60}
"""Requests of each test, as evenly over the deciding clauses as they come."""
CHANGES = ("renumber", "paraphrase", "swap")
FLOAT32 = Loading(dtype="float32")


def prompt(specification: Specification | None) -> PromptFormat:
    return PromptFormat(template=f"{specification.text if specification else ''}{{problem}}\n")


def balanced(
    requests: Sequence[world.RuleRequest], split: RuleSplit, count: int, seed: int
) -> list[world.RuleRequest]:
    """``count`` requests, the deciding clauses in turn."""
    rng = np.random.default_rng([seed, count])
    by_clause: dict[str, list[world.RuleRequest]] = {}
    for at in rng.permutation(len(requests)).tolist():
        by_clause.setdefault(requests[at].deciding(split.specification).id, []).append(requests[at])
    rows = sorted(by_clause.items())
    order = [group[at] for at in range(len(requests)) for _, group in rows if at < len(group)]
    return order[:count]


def sample(
    policy: TransformersPolicy,
    requests: Sequence[world.RuleRequest],
    specifications: Sequence[Specification | None],
) -> list[str]:
    """A greedy completion of each request."""
    asked = [
        SampleRequest(
            prompt=prompt(specification).template.replace("{problem}", request.text),
            sampling=Sampling(temperature=0.0, max_tokens=RL.max_tokens),
        )
        for request, specification in zip(requests, specifications, strict=True)
    ]
    return [result.completions[0].text for result in asyncio.run(policy.sample(asked))]


def completions(start: Path, split: RuleSplit, problems: Sequence[Problem], seed: int) -> list[LabelledTrace]:
    """What the start policy writes with the specification in its prompt, with the exact labels."""
    policy = TransformersPolicy.from_pretrained(start, loading=FLOAT32)
    with AnswerChecker("exact") as checker:
        groups = asyncio.run(
            sample_traces(
                policy, problems, n=SAMPLES, seed=seed, segmenter=Line(), grader=Grader(checker=checker),
                prompt=prompt(split.specification), sampling=Sampling(max_tokens=RL.max_tokens),
            )
        )  # fmt: skip
    items = [
        ProblemTrace(problem=problem, trace=trace)
        for problem, traces in zip(problems, groups, strict=True)
        for trace in traces
    ]
    labels = asyncio.run(VerifierLabeller(verifiers=(world.RuleVerifier(split.specification),)).label(items))
    return [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(row))
        for item, row in zip(items, labels, strict=True)
    ]


def answer_alone(item: LabelledTrace) -> Trace:
    """The completion without its reasoning."""
    text = plain_answer(str(item.trace.answer))
    trace = Trace(
        problem_id=item.problem.id, text=text, sample=item.trace.sample, finish_reason="stop", outcome=True
    )
    return segment_trace(trace, Line())


def training_traces(arm: str, written: Sequence[LabelledTrace]) -> list[Trace]:
    """What an arm is fine-tuned on."""
    if arm == UNFILTERED:
        return [item.trace for item in written if item.trace.steps and not item.trace.cut_off]
    passed = [item for item in written if rejection(item) is None]
    if arm == REFUSALS:
        passed = [item for item in passed if item.trace.answer == "refuse"]
    return [answer_alone(item) if arm in (ANSWERS, FASTER, REFUSALS) else item.trace for item in passed]


def train_arm(
    arm: str, start: Path, split: RuleSplit, written: Sequence[LabelledTrace], folder: Path, seed: int
) -> dict[str, Any]:
    """Fine-tune, then RL; the policy is in ``folder/rl/policy``."""
    problems = {item.problem.id: item.problem for item in written}
    prompts = prompt(split.specification if arm == PROMPTED else None)
    if arm != PROMPTED:
        split.specification.require_absent(str(prompts.render(one)) for one in problems.values())
    model, tokenizer = load_causal(start, FLOAT32)
    traces = training_traces(arm, written)
    examples = build_cloning_examples(
        tokenizer, prompts, problems, [demonstrate(trace) for trace in traces], max_length=192
    ).examples
    tokens = sum(example.length for example in examples)
    epochs = max(1, round(SFT_TOKENS / tokens))
    rate = SFT.learning_rate * (4 if arm == FASTER else 1)
    settings = SFT.model_copy(update={"epochs": epochs, "seed": seed, "learning_rate": rate})
    clone_steps(model, tokenizer, examples, settings, folder / "sft")
    model, tokenizer = load_causal(folder / "sft", FLOAT32)
    rewarded = [one for one in problems.values() if arm != REFUSALS or one.answer == "refuse"]
    known = {one.id for one in rewarded}
    held_out = [
        problem
        for request in split.tests["requests"]
        if (problem := request.problem(split.specification)).id not in known
    ][:4]  # RL wants some; nothing is chosen by them
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=rewarded,
            held_out=held_out,
            segmenter=Line(),
            grader=Grader(checker=checker),
            prompt=prompts,
        )
        log = train_policy(model, tokenizer, task, RL.model_copy(update={"seed": seed}), folder / "rl")
    return {
        "traces": len(traces),
        "tokens": tokens * epochs,
        "epochs": epochs,
        "channels": str(log.channels),
    }


def answers(texts: Sequence[str]) -> list[str]:
    return [text.rpartition("Answer: ")[2].strip() for text in texts]


def tested(policy: TransformersPolicy, split: RuleSplit, seed: int, *, prompted: bool) -> dict[str, Any]:
    """Per test and deciding clause: right answers, cited clauses; per twin: not allowed."""
    specification, results = split.specification, {}
    for name, count in SIZES.items():
        requests = balanced(split.tests[name], split, count, seed)
        texts = sample(policy, requests, [specification if prompted else None] * len(requests))
        deciding = [request.deciding(specification) for request in requests]
        right = [a == clause.decision for a, clause in zip(answers(texts), deciding, strict=True)]
        cited = [
            cites_deciding_clause(r, text, specification) for r, text in zip(requests, texts, strict=True)
        ]
        ids = sorted({clause.id for clause in deciding})
        of_clause = {i: [at for at, clause in enumerate(deciding) if clause.id == i] for i in ids}
        results[name] = {
            "right": [float(np.mean([right[at] for at in rows])) for rows in of_clause.values()],
            "cited": [float(np.mean([cited[at] for at in rows])) for rows in of_clause.values()],
            "wrong": [not one for one in right],
        }
    return results


def under_changes(policy: TransformersPolicy, split: RuleSplit, seed: int) -> dict[str, dict[str, float]]:
    """With a changed specification in the prompt: answers and clauses that follow it."""
    rng = np.random.default_rng([seed, 7])
    pool = [r for name in ("requests", "clauses", "unread") for r in split.tests[name]]
    requests, results = balanced(pool, split, 96, seed), {}
    for change in CHANGES:
        specifications = [world.changed(split.specification, rng, change) for _ in requests]
        texts = sample(policy, requests, specifications)
        both = list(zip(requests, texts, specifications, strict=True))
        follows = [answers([text])[0] == request.deciding(s).decision for request, text, s in both]
        cites = [cites_deciding_clause(request, text, s) for request, text, s in both]
        results[change] = {"answer": float(np.mean(follows)), "clause": float(np.mean(cites))}
    return results


def run_seed(seed: int, lookup: Path, folder: Path) -> dict[str, Any]:
    """All arms of one seed; kept in ``folder`` and not repeated."""
    done = folder / "results.json"
    if done.exists():
        return json.loads(done.read_text())
    begin, split = time.process_time(), split_rules(seed)
    train_rule_policy(folder / "start", read=(*split.trained, *split.read), base=lookup, seed=seed)
    problems = [request.problem(split.specification) for request in split.training]
    written = completions(folder / "start", split, problems, seed)
    start = TransformersPolicy.from_pretrained(folder / "start", loading=FLOAT32)
    results: dict[str, Any] = {
        "passed": float(np.mean([rejection(item) is None for item in written])),
        "right_but_rejected": float(
            np.mean([item.trace.outcome is True and rejection(item) is not None for item in written])
        ),
        "arms": {
            "start policy": {"tests": tested(start, split, seed, prompted=False)},
            "start policy, specification in the prompt": {"tests": tested(start, split, seed, prompted=True)},
        },
    }
    for arm in ARMS:
        about = train_arm(arm, folder / "start", split, written, folder / arm.replace(" ", "-"), seed)
        path = folder / arm.replace(" ", "-") / "rl" / "policy"
        policy = TransformersPolicy.from_pretrained(path, loading=FLOAT32)
        tests = tested(policy, split, seed, prompted=arm == PROMPTED)
        results["arms"][arm] = about | {"tests": tests}
        if arm == DELIBERATION:
            results["changed"] = under_changes(policy, split, seed)
        line = {name: round(100 * float(np.mean(row["right"]))) for name, row in tests.items()}
        print(f"seed {seed}: {arm}: {line}", flush=True)
    results["cpu_s"] = round(time.process_time() - begin, 1)
    done.write_text(json.dumps(results, indent=1))
    return results


def difference(results: Sequence[dict[str, Any]], test: str, field: str, sign: int = 1) -> Any:
    """Deliberation less the better answers only, in points, with its interval."""
    rival = max(
        (ANSWERS, FASTER),
        key=lambda arm: np.mean([np.mean(one["arms"][arm]["tests"]["clauses"]["right"]) for one in results]),
    )
    rows = [
        sign * (np.array(one["arms"][DELIBERATION]["tests"][test][field], float)
                - np.array(one["arms"][rival]["tests"][test][field], float))
        for one in results
    ]  # fmt: skip
    width = min(map(len, rows))
    return mean_over_runs(100 * np.array([row[:width] for row in rows]), rng=np.random.default_rng(0))


def figures(results: Sequence[dict[str, Any]]) -> Figures:
    def mean(of: Any) -> float:
        return float(np.mean([of(one) for one in results]))

    lines = [
        figure("rule_compliance_difference", difference(results, "clauses", "right"), "points"),
        figure("over_refusal_difference", difference(results, "twins", "wrong"), "points"),
        figure("unread_difference", difference(results, "unread", "right"), "points"),
        figure(
            "right_clause_share",
            mean(lambda r: np.mean(r["arms"][DELIBERATION]["tests"]["clauses"]["cited"])),
            "",
        ),
    ]
    for name, change, field in (
        ("swap_followed", "swap", "answer"),
        ("swap_clause", "swap", "clause"),
        ("renumbered_clause", "renumber", "clause"),
        ("paraphrased_clause", "paraphrase", "clause"),
    ):
        lines.append(figure(name, mean(lambda r, c=change, f=field: r["changed"][c][f]), ""))
    lines.append(figure("passed_the_filter", 100 * mean(lambda r: r["passed"])))
    lines.append(figure("right_answers_rejected", 100 * mean(lambda r: r["right_but_rejected"])))
    for arm in results[0]["arms"]:
        for test in SIZES:
            values = [np.mean(one["arms"][arm]["tests"][test]["right"]) for one in results]
            each = figure(f"{arm}, {test}", 100 * float(np.mean(values)))
            lines.append(each | {"note": ", ".join(f"{100 * value:.0f}" for value in values)})
    return lines


def main() -> None:
    parser = arguments(__doc__, "one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, help="keep the runs here, and do not repeat them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        lookup = runs / f"lookup-{options.first_seed}"
        if not (lookup / "recipe.json").exists():
            train_rule_policy(lookup, seed=options.first_seed)
        seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
        results = [run_seed(seed, lookup, runs / f"seed-{seed}") for seed in seeds]
    arms = [
        {arm: {k: v for k, v in row.items() if k != "tests"} for arm, row in one["arms"].items()}
        for one in results
    ]
    cpu_s = [one["cpu_s"] for one in results] + [round(time.process_time(), 1)]
    write(options, show(figures(results)), seeds=list(seeds), cpu_s=cpu_s, arms=arms)


if __name__ == "__main__":
    main()
