"""A judge's labels corrected by few labels of people: coverage and width of the intervals.

    python -m benchmarks.judge.run [--quick] [--data DIR] [--cje PYTHON] [--json FILE]

``simulated``: 400 problems of which 60 have gold labels, and a judge with false alarms.

``real``: the 20 stored judges of AgentProcessBench (``apb_human_vs_judges.jsonl.gz`` in ``--data``). A random
fifth of its tasks counts as labelled, and the share over all 500 runs as the truth; with a fifth of a finite
set, nominal coverage is 97.1 %.

``--cje`` is the Python of an environment with the rival, ``pip install cje-eval``; it gets the same simulated
numbers. A ratio is the width of the gold labels' interval, or the rival's, divided by ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common.figures import figure
from surefoot.evaluation import calibrate_judge
from surefoot.formats import read_agent_judgements
from surefoot.records import Step, Trace
from surefoot.stats import prediction_powered_mean, wilson_interval

TRUTH, PROBLEMS, LABELLED, ACCURACY = 0.25, 400, 60, 0.85
_RIVAL = """
import json, sys, warnings, logging
import numpy as np
from cje import calibrated_mean_ci
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
data = np.load(sys.argv[1])
json.dump([calibrated_mean_ci(f, y).ci for f, y in zip(data["judged"], data["gold"])], sys.stdout)
"""


def main() -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/agent"))
    parser.add_argument("--cje")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    draws = 200 if args.quick else 2000
    figures = simulated(draws, args.cje)
    if (args.data / "apb_human_vs_judges.jsonl.gz").exists():
        figures += real(args.data / "apb_human_vs_judges.jsonl.gz", splits=20 if args.quick else 200)
    else:
        print(f"real: left out, {args.data} has no apb_human_vs_judges.jsonl.gz")
    for one in figures:
        between = "" if one["low"] is None else f" [{one['low']:.3g}, {one['high']:.3g}]"
        ratio = "" if one["ratio"] is None else f", ratio {one['ratio']:.2f}"
        print(f"{one['name']}: {one['value']:.3g} {one['unit']}{between}{ratio}")
    if args.json:
        setting = {"simulations": draws, "problems": PROBLEMS, "labelled": LABELLED, "accuracy": ACCURACY}
        args.json.write_text(json.dumps({"figures": figures, "setting": setting}, indent=1))


def simulated(draws: int, rival: str | None) -> list[dict]:
    """Coverage and width; seeds from 10,000, which no test uses."""
    judged, gold = np.empty((draws, PROBLEMS)), np.full((draws, PROBLEMS), np.nan)
    for draw in range(draws):
        rng = np.random.default_rng(10_000 + draw)
        wrong = rng.random(PROBLEMS) < rng.beta(1, 3, PROBLEMS)
        judged[draw] = wrong | (rng.random(PROBLEMS) > ACCURACY)
        chosen = rng.choice(PROBLEMS, LABELLED, replace=False)
        gold[draw, chosen] = wrong[chosen]
    means = [prediction_powered_mean(f, y, np.arange(PROBLEMS)) for f, y in zip(judged, gold, strict=True)]
    ours = np.array([mean.corrected.bounds for mean in means])
    plain = np.array([mean.gold_only.bounds for mean in means])
    rows = {"corrected": ours, "gold_only": plain}
    if rival:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "data.npz"
            np.savez(file, judged=judged, gold=gold)
            done = subprocess.run([rival, "-c", _RIVAL, file], capture_output=True, text=True, check=True)
        rows["cje_eval"] = np.array(json.loads(done.stdout))
    else:
        print("cje-eval: left out; `pip install cje-eval` in an environment of its own, then --cje PYTHON")
    width = {name: float(np.mean(bounds[:, 1] - bounds[:, 0])) for name, bounds in rows.items()}
    figures = []
    for name, bounds in rows.items():
        inside = int(((bounds[:, 0] <= TRUTH) & (bounds[:, 1] >= TRUTH)).sum())
        figures.append(figure(f"coverage_{name}", 100 * wilson_interval(inside, draws)))
        ratio = width[name] / width["corrected"] if name != "corrected" else None
        figures.append(figure(f"width_{name}", 100 * width[name], "points", ratio=ratio))
    return figures


def real(path: Path, *, splits: int) -> list[dict]:
    """A table of the judges, and how often an interval from a fifth of the tasks covers the share of all."""
    runs = list(read_agent_judgements(path))
    traces = [
        Trace(
            id=run.trace_id,
            problem_id=run.problem_id,
            text="." * run.steps,
            steps=tuple(Step(start=n, end=n + 1, kind="message") for n in range(run.steps)),
        )
        for run in runs
    ]
    people = [label for run in runs for label in run.labels]
    names = sorted({name for run in runs for name in run.judges})
    judges = {name: [label for run in runs for label in run.judges.get(name, ())] for name in names}
    tasks = sorted({run.problem_id for run in runs})
    whole = calibrate_judge(traces, people, judges, draws=200)
    truth = whole.rates[0].gold_only.value
    covered, narrower = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    steps = [(trace.id, step) for trace in traces for step in range(len(trace.steps))]
    keys = {step: number for number, step in enumerate(steps)}
    problem = np.array([trace.problem_id for trace in traces for _ in trace.steps])
    columns = {"people": people, **judges}
    values = {name: np.full(len(keys), np.nan) for name in columns}
    for name, labels in columns.items():
        for label in labels:
            if label.value is not None:
                values[name][keys[label.trace_id, label.step]] = label.value < 0
    for split in range(splits):
        chosen = np.random.default_rng(20_000 + split).choice(tasks, len(tasks) // 5, replace=False)
        gold = np.where(np.isin(problem, chosen), values["people"], np.nan)
        for name in names:
            mean = prediction_powered_mean(values[name], gold, problem)
            covered[name] += mean.corrected.includes(truth)
            narrower[name] += np.ptp(mean.gold_only.bounds) / np.ptp(mean.corrected.bounds) / splits
    print(f"people call {truth:.1%} of {len(keys)} steps wrong ({len(tasks)} tasks)")
    print("| judge | calls wrong | kappa | sensitivity | specificity | covered | narrower by |")
    rates = {rate.judge: rate for rate in whole.rates}
    for row in sorted((row for row in whole.quality if row.by == "all"), key=lambda row: -row.kappa.value):
        print(
            f"| {row.judge} | {rates[row.judge].judged:.1%} | {row.kappa:.2f} | {row.sensitivity:.2f} | "
            f"{row.specificity:.2f} | {covered[row.judge] / splits:.1%} | {narrower[row.judge]:.2f} |"
        )
    return [
        figure("coverage_apb_20_judges", 100 * sum(covered.values()) / splits / len(names)),
        figure("width_ratio_apb_median", float(np.median(list(narrower.values()))), "times"),
        figure("width_ratio_apb_best", max(narrower.values()), "times"),
    ]


if __name__ == "__main__":
    main()
