"""Naming the fault of mutants of HumanEval's reference solutions: labellers, a learned PRM, and floors."""

from __future__ import annotations

import ast
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np

from benchmarks.common.figures import Figure, Figures, figure, over_tasks
from benchmarks.common.gates import gate_figures
from benchmarks.worlds.mutants import labelled_mutants
from surefoot.formats import read_humaneval, read_mbpp_check
from surefoot.io import ReadReport
from surefoot.labelling import grade_traces, open_verifier
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import CodeTask, Problem, StepLabel, Trace
from surefoot.sandbox import Sandbox
from surefoot.segment import PythonCode, segment_trace
from surefoot.stats import step_facts

TRAINING_PROBLEMS = 500
"""Of MBPP, whose mutants the PRM learns from; HumanEval is for measuring alone."""
MUTANTS = 2
"""Of each problem of HumanEval; of those of MBPP one more."""
CONFIRMED = slice(500, 660)
"""Problems of MBPP that ``repair`` was not tuned on."""
FAILURES = 8
"""Failing samples of each task."""


def figures_of(
    data: Path, sandbox: Sandbox, model: Path | None, folder: Path | None, *, quick: bool
) -> Iterator[Figure]:
    """How often each names the faulty step (saying nothing is wrong, too), and what it costs."""
    problems = list(read_humaneval(data / "HumanEval.jsonl.gz"))[: 30 if quick else None]
    items = list(labelled_mutants(problems, sandbox, per_problem=MUTANTS))
    faults = [[label.value for label in item.labels].index(-1.0) for item in items]
    lengths = [[step.end - step.start for step in item.trace.steps] for item in items]
    began = time.perf_counter()
    guesses: dict[str, list[int | None]] = {"accuracy": named_by_trace(plain(items))}
    yield figure("first_wrong_line_cost", (time.perf_counter() - began) / len(items), "seconds a mutant")
    yield from mutant_figures("mutants", items, guesses["accuracy"])
    mbpp = list(read_mbpp_check(data / "mbpp_mxeval.jsonl.gz", report=ReadReport()))[CONFIRMED]
    unseen = list(labelled_mutants(mbpp[: 30 if quick else None], sandbox, per_problem=MUTANTS))
    yield from mutant_figures("mbpp_mutants", unseen, named_by_trace(plain(unseen)))
    guesses |= {
        "floor_first": [0] * len(items),
        "floor_last": [len(some) - 1 for some in lengths],
        "floor_longest": [some.index(max(some)) for some in lengths],
    }
    if model is not None and folder is not None:
        prm = trained(model, folder / "mutants-prm", data / "mbpp_mxeval.jsonl.gz", sandbox, quick=quick)
        began = time.perf_counter()
        scores = scores_of(prm, plain(items))
        yield figure("first_wrong_line_cost_learned", (time.perf_counter() - began) / len(items), "seconds")
        guesses["learned"] = [lowest(row) for row in scores]
        right = list(references(items))
        yield from reading_figures([*items, *right], [*scores, *scores_of(prm, plain(right))])
    for name, guess in guesses.items():
        by_problem = defaultdict(list)
        for item, one, fault in zip(items, guess, faults, strict=True):
            by_problem[item.problem.id].append(float(one == fault))
        values = [sum(some) / len(some) for some in by_problem.values()]
        yield over_tasks(f"first_wrong_line_{name}", values, f"of {len(items)} mutants")
    verdicts = [one for one in grade_traces(sandbox, plain(items), visibility="visible") if one is not None]
    passed = [one.passed is True for one in verdicts]
    yield figure("visible_false_pass", sum(passed) / len(passed), f"of {len(passed)} mutants")


def mutant_figures(
    name: str, items: Sequence[LabelledTrace], blamed: Sequence[int | None]
) -> Iterator[Figure]:
    """Figures of mutants as they are, and with other names of local variables."""
    faults = [[label.value for label in item.labels].index(-1.0) for item in items]
    yield from blame_figures(name, plain(items), blamed, faults)
    pairs = [
        (other, fault) for item, fault in zip(items, faults, strict=True) if (other := with_other_names(item))
    ]
    renamed = [other for other, _ in pairs]
    yield from blame_figures(
        f"renamed_{name}", renamed, named_by_trace(renamed), [fault for _, fault in pairs]
    )


def blame_figures(
    name: str, items: Sequence[ProblemTrace], blamed: Sequence[int | None], faults: Sequence[int]
) -> Iterator[Figure]:
    """Coverage: programs of which a step is called wrong. Precision: of these, those whose fault it is."""
    covered, right = defaultdict(list), defaultdict(list)
    for item, step, fault in zip(items, blamed, faults, strict=True):
        covered[item.problem.id].append(float(step is not None))
        if step is not None:
            right[item.problem.id].append(float(step == fault))
    for what, by_problem in (("coverage", covered), ("precision", right)):
        values = [sum(some) / len(some) for some in by_problem.values()]
        count = sum(map(len, by_problem.values()))
        yield over_tasks(f"{name}_{what}", values, f"of {count} programs, mean over {len(values)} problems")


def with_other_names(item: LabelledTrace) -> ProblemTrace | None:
    """The program with its local variables renamed, except arguments; ``None`` if it has none."""
    task, text = CodeTask.of(item.problem), item.trace.text or ""
    prompt = task.prompt if task else ""
    nodes = list(ast.walk(ast.parse(prompt + text)))
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    variables -= {node.arg for node in nodes if isinstance(node, ast.arg | ast.keyword)}
    new = {name: f"v{at}_{name[::-1]}" for at, name in enumerate(sorted(variables))}
    places = {
        (node.lineno - 1, node.col_offset, node.id)
        for node in nodes
        if isinstance(node, ast.Name) and node.id in new
    }
    lines = (prompt + text).encode().split(b"\n")
    for line, column, name in sorted(places, reverse=True):
        after = column + len(name.encode())
        lines[line] = lines[line][:column] + new[name].encode() + lines[line][after:]
    renamed = b"\n".join(lines).decode()[len(prompt) :]
    if renamed == text:
        return None
    trace = segment_trace(Trace(problem_id=item.problem.id, text=renamed), PythonCode())
    return ProblemTrace(problem=item.problem, trace=trace)


def real_failure_figures(
    tasks: Iterable[tuple[Problem, Sequence[str], Iterable[bool]]],
) -> Iterator[Figure]:
    """How many of the samples that fail have a step that is called wrong: on the tasks that the method was
    tuned on, every second by number, and on the others.

    ``tasks``: problem, samples, and which are right; ``FAILURES`` of the wrong ones are drawn.
    """
    by_id = sorted(tasks, key=lambda task: task[0].id)
    for name, chosen in (("tuned", by_id[::2]), ("confirmed", by_id[1::2])):
        values, count = [], 0
        for problem, texts, right in chosen:
            unique = dict(zip(texts, right, strict=True))
            wrong = [text for text, passed in unique.items() if not passed]
            drawn = random.Random(f"0 {problem.id}").sample(wrong, min(FAILURES, len(wrong)))
            used = [*drawn, *(text for text, passed in unique.items() if passed)]
            traces = [segment_trace(Trace(problem_id=problem.id, text=text), PythonCode()) for text in used]
            blamed = named_by_trace([ProblemTrace(problem=problem, trace=trace) for trace in traces])
            if drawn:
                values.append(sum(step is not None for step in blamed[: len(drawn)]) / len(drawn))
                count += len(drawn)
        yield over_tasks(
            f"real_failures_coverage_{name}", values, f"of {count} programs, mean over {len(values)} tasks"
        )


def named_by_trace(items: Sequence[ProblemTrace]) -> list[int | None]:
    """The first step that ``repair`` calls wrong."""
    verifier = open_verifier("repair")
    with verifier if isinstance(verifier, AbstractContextManager) else nullcontext():
        rows = verifier.verify(items)
    return [next((at for at, verdict in enumerate(row) if verdict.value == -1), None) for row in rows]


def scores_of(directory: Path, items: Sequence[ProblemTrace]) -> list[Sequence[float | None]]:
    """Step scores of the reward model in ``directory``."""
    from surefoot.models import load_prm

    return [record.scores for record in load_prm(directory).score_traces(items)]


def lowest(scores: Sequence[float | None]) -> int | None:
    """The step with the lowest score."""
    return None if None in scores else int(np.argmin([score or 0.0 for score in scores]))


def reading_figures(items: Sequence[LabelledTrace], scores: Sequence[Sequence[float | None]]) -> Figures:
    """The reading gate on labelled steps: a mutant's fault has the reference's step as its sibling."""
    facts, good, problems, values = [], [], [], []
    for item, of_steps in zip(items, scores, strict=True):
        labels = [label.value for label in item.labels]
        for fact, label, score in zip(step_facts(item.problem, item.trace), labels, of_steps, strict=True):
            if label is not None and score is not None:
                facts.append(fact)
                good.append(label > 0)
                problems.append(item.problem.id)
                values.append(score)
    return gate_figures({"mutants_prm": values}, facts, good, problems)


def trained(model: Path, directory: Path, mbpp: Path, sandbox: Sandbox, *, quick: bool) -> Path:
    """A step classifier on the frozen trunk, from mutants of MBPP and the reference solutions themselves."""
    from surefoot.models import CheckpointCard, RewardModel
    from surefoot.training import StepTargets, TrainingConfig, build_examples, train

    if (directory / "surefoot.json").exists():
        return directory
    problems = list(read_mbpp_check(mbpp, report=ReadReport()))[: 50 if quick else TRAINING_PROBLEMS]
    items = list(labelled_mutants(problems, sandbox, per_problem=MUTANTS + 1))
    items += references(items)
    items.sort(key=lambda item: item.problem.id)  # what begins alike is read once if it lies together
    card = CheckpointCard(kind="prm", label_source="mutants of MBPP", base=model.name)
    scorer = RewardModel.initialise(model, card)
    made = build_examples(scorer.tokenizer, scorer.card.encoding, items, StepTargets())
    config = TrainingConfig(freeze_trunk=True, epochs=10, batch_size=64, learning_rate=1e-3, weight_decay=0.1)
    train(scorer, made.examples, config, directory)
    return directory


def references(items: Iterable[LabelledTrace]) -> Iterator[LabelledTrace]:
    """Reference solutions, all of whose steps are right."""
    for problem in {item.problem.id: item.problem for item in items}.values():
        task = CodeTask.of(problem)
        text = task.reference if task else None
        trace = segment_trace(Trace(problem_id=problem.id, text=text, policy="reference"), PythonCode())
        labels = tuple(
            StepLabel(trace_id=trace.id, step=at, kind="correctness", value=1.0, source="reference")
            for at in range(len(trace.steps))
        )
        yield LabelledTrace(problem=problem, trace=trace, labels=labels)


def plain(items: Iterable[LabelledTrace]) -> list[ProblemTrace]:
    """Without labels."""
    return [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
