"""Measuring: intervals, step metrics, label noise, benchmarks, and the reports that show them."""

from surefoot.evaluation.prmbench import evaluate_prmbench, prmbench_cases
from surefoot.evaluation.processbench import evaluate_processbench, processbench_cases
from surefoot.evaluation.step_scores import labelled_system, open_systems, scored_system
from surefoot.evaluation.steps import ProcessBenchResult, best_threshold, processbench_f1

__all__ = [
    "ProcessBenchResult",
    "best_threshold",
    "evaluate_prmbench",
    "evaluate_processbench",
    "labelled_system",
    "open_systems",
    "prmbench_cases",
    "processbench_cases",
    "processbench_f1",
    "scored_system",
]
