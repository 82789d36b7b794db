"""Path dependence and memorized problems, in the lab and on real data, for ``benchmarks/questions/run.py``.

Paths: correct solutions with restatements and corrected slips (lab), and solutions of MATH-500 with a stored
PRM's scores. Twins: the lab's PRM, a scorer that knows its training solutions by heart (it has to fail), and
on GSM8K's own solutions the equation verifier, which follows equations more than problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.figures import figure
from surefoot.evaluation import StoredScores
from surefoot.evaluation.audits import TWINS, AuditedScorer, Case, audit_paths, audit_variants, lab_cases
from surefoot.formats import read_candidate_pool, read_gsm8k_solutions
from surefoot.lab import generate_problems, parse_problem, worked_solution
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models import LabelScorer, load_prm
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores, Trace
from surefoot.segment import Line, segment_trace

Figures = list[dict[str, Any]]


class Memory:
    """Scores 1 for solutions that it was trained on, and 0 for others."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.texts = {case.item.trace.text for case in cases}

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="memory",
                scores=(float(item.trace.text in self.texts),) * len(item.trace.steps),
            )
            for item in items
        ]


class Shortness:
    """A baseline: the shorter a solution, the higher its score."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer="shortness",
                scores=(float(np.exp(-len(item.trace.steps) / 20)),) * len(item.trace.steps),
            )
            for item in items
        ]


def audit_figures(data: Path | None, *, quick: bool) -> Figures:
    """Figures of both audits."""
    figures: Figures = []
    cases = lab_paths(30 if quick else 120, seed=20)
    prm = AuditedScorer(name="lab_prm", scorer=load_prm("lab"), rule="min")
    for scorer in (prm, AuditedScorer(name="shortness", scorer=Shortness(), rule="min")):
        found = audit_paths(scorer, cases)
        figures += _paths(f"lab_{scorer.name}", found)
    if data is not None:
        figures += _pool_paths(data / "bon" / "math500_prm_scored_pool.jsonl.gz", quick=quick)
    plain = [case for case in cases if case.item.trace.sample == 0]
    for scorer in (prm, AuditedScorer(name="memory", scorer=Memory(plain), rule="min")):
        figures += _twins(f"lab_{scorer.name}", scorer, plain)
    if data is not None:
        items = list(read_gsm8k_solutions(data / "math" / "gsm8k_test.jsonl.gz"))
        gold = [Case(item=item, good=(True,) * len(item.trace.steps)) for item in items]
        labeller = VerifierLabeller(verifiers=(open_verifier("equations"),))
        scorer = LabelScorer(labeller, name="equations", unknown=1.0)
        figures += _twins("gsm8k_equations", AuditedScorer(name="equations", scorer=scorer, rule="min"), gold)
    return figures


def lab_paths(count: int, *, seed: int) -> list[Case]:
    """A plain correct solution of each problem and five with restatements and corrected slips."""
    rng = np.random.default_rng(seed)
    items = []
    for problem in generate_problems(count, seed=seed):
        chain = parse_problem(problem.text)
        texts = [worked_solution(chain)]
        texts += [worked_solution(chain, rng=rng, restate=0.2, slip=0.1) for _ in range(5)]
        for number, text in enumerate(texts):
            trace = Trace(
                problem_id=problem.id, text=text, answer=problem.answer, outcome=True, sample=number
            )
            items.append(ProblemTrace(problem=problem, trace=segment_trace(trace, Line())))
    return [case for case in lab_cases(items) if case.right]


def _pool_paths(file: Path, *, quick: bool) -> Figures:
    pools = list(read_candidate_pool(file))[: 40 if quick else None]
    items = [
        ProblemTrace(
            problem=pool.problem, trace=trace.model_copy(update={"outcome": trace.meta.get("correct")})
        )
        for pool in pools
        for trace in pool.traces
    ]
    cases = [Case(item=item, good=(None,) * len(item.trace.steps)) for item in items]
    stored = StoredScores([record for pool in pools for record in pool.scores])
    figures = []
    for rule in ("min", "last"):
        found = audit_paths(AuditedScorer(name=rule, scorer=stored, rule=rule, stored=True), cases)
        figures += _paths(f"math500_stored_prm_{rule}", found)
    return figures


def _paths(name: str, found: Any) -> Figures:
    return [
        figure(f"paths_{name}_preference", found.preference, "score"),
        figure(f"paths_{name}_steps_of_usual", found.steps, "steps"),
        figure(f"paths_{name}_narrower", found.narrower, "similarity"),
        figure(f"paths_{name}_problems", found.problems, "problems"),
    ]


def _twins(name: str, scorer: AuditedScorer, cases: Sequence[Case]) -> Figures:
    figures = []
    for effect in audit_variants(scorer, cases, TWINS).effects:
        key = effect.variant.replace(" ", "_")
        figures += [
            figure(f"twins_{name}_{key}_change", effect.change, "score"),
            figure(f"twins_{name}_{key}_fell", 100 * effect.fell),
            figure(f"twins_{name}_{key}_solutions", effect.traces, "solutions"),
        ]
    return figures
