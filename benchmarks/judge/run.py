"""A judge's labels corrected by few labels of people: coverage and width of the intervals."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.common.figures import DATA, Figures, arguments, figure, left_out, show, write
from benchmarks.readers.agent_judgements import read_agent_judgements
from surefoot.evaluation import calibrate_judge
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
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "agent")
    parser.add_argument("--cje", help="Python that has cje-eval")
    options = parser.parse_args()
    draws = 200 if options.quick else 2000
    figures = simulated(draws, options.cje)
    judged = options.data / "apb_human_vs_judges.jsonl.gz"
    if judged.exists():
        figures += real(judged, splits=20 if options.quick else 200)
    else:
        left_out("real", f"{judged} is not there")
    about = {"simulations": draws, "problems": PROBLEMS, "labelled": LABELLED, "accuracy": ACCURACY}
    write(options, show(figures), **about)


def simulated(draws: int, rival: str | None) -> Figures:
    """Coverage and width; seeds from 10,000, which no test uses."""
    judged, gold = np.empty((draws, PROBLEMS)), np.full((draws, PROBLEMS), np.nan)
    for draw in range(draws):
        rng = np.random.default_rng(10_000 + draw)
        wrong = rng.random(PROBLEMS) < rng.beta(1, 3, PROBLEMS)
        judged[draw] = wrong | (rng.random(PROBLEMS) > ACCURACY)
        chosen = rng.choice(PROBLEMS, LABELLED, replace=False)
        gold[draw, chosen] = wrong[chosen]
    means = [
        prediction_powered_mean(f, y, np.arange(PROBLEMS), rate=True)
        for f, y in zip(judged, gold, strict=True)
    ]
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
        left_out("cje-eval", "pip install cje-eval in an environment of its own, then --cje PYTHON")
    width = {name: float(np.mean(bounds[:, 1] - bounds[:, 0])) for name, bounds in rows.items()}
    figures = []
    for name, bounds in rows.items():
        inside = int(((bounds[:, 0] <= TRUTH) & (bounds[:, 1] >= TRUTH)).sum())
        figures.append(figure(f"coverage_{name}", 100 * wilson_interval(inside, draws)))
        ratio = width[name] / width["corrected"] if name != "corrected" else None
        figures.append(figure(f"width_{name}", 100 * width[name], "points", ratio=ratio))
    return figures


def real(path: Path, *, splits: int) -> Figures:
    """A table of the judges, and how often an interval from a fifth of the tasks covers the share of all."""
    runs = list(read_agent_judgements(path))
    traces = [run.item.trace for run in runs]
    people = [label for run in runs for label in run.item.labels]
    names = sorted({name for run in runs for name in run.judges})
    judges = {name: [label for run in runs for label in run.judges.get(name, ())] for name in names}
    tasks = sorted({trace.problem_id for trace in traces})
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
            mean = prediction_powered_mean(values[name], gold, problem, rate=True)
            covered[name] += mean.corrected.includes(truth)
            narrower[name] += np.ptp(mean.gold_only.bounds) / np.ptp(mean.corrected.bounds) / splits
    print(f"people call {truth:.1%} of {len(keys)} steps wrong ({len(tasks)} tasks)")
    print("| judge | calls wrong | kappa | sensitivity | specificity | covered | narrower by |")
    rates = {rate.judge: rate for rate in whole.rates}
    for row in sorted(whole.quality, key=lambda row: -row.kappa.value):
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
