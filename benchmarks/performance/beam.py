"""Beam search against search-and-learn's: wall time on the same models, problems and budget."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.common.clocks import CLOCKS, Clock, add_clock, prepare
from benchmarks.common.figures import (
    Figure,
    Figures,
    arguments,
    figure,
    left_out,
    over_rounds,
    show,
    times,
    write,
)
from benchmarks.prm_vs_orm.run import trained_prm
from benchmarks.worlds.digits import POLICY, generate_problems
from surefoot.answers import AnswerChecker, AnswerStyle, Grader, Solution
from surefoot.models import IncrementalScorer, RewardModel, Scorer
from surefoot.policies import TransformersPolicy
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Problem, Trace
from surefoot.search import BeamSearch, Steps, run_search
from surefoot.segment import Line, segment_trace
from surefoot.stats import bootstrap_mean

DRAWS, EXPAND, ROUNDS = 16, 4, 14
TEMPERATURE, TOKENS, REMEMBER = 0.8, 96, 300_000
RIVALS = ("theirs", "batched")
# a solution of max_steps steps is written to its end, which is one round more
STEPS = Steps(
    step_tokens=TOKENS, max_steps=ROUNDS - 1, sampling=Sampling(temperature=TEMPERATURE, max_tokens=TOKENS)
)
STYLES: tuple[AnswerStyle, ...] = ("phrase",)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One repetition of one side over P problems."""

    seconds: float
    right: list[bool]
    """[P]"""
    read: int
    """Tokens of prompts and prefixes that the policy read."""
    written: int
    scored: int
    """Tokens pushed through the PRM."""


class Ours:
    """This package."""

    def __init__(self, prm: Path, clock: Clock) -> None:
        self.clock = clock
        self.policy = TransformersPolicy.from_pretrained(POLICY)
        self.model = RewardModel.load(prm)

    def search(self, problems: Sequence[Problem], seed: int) -> Run:
        """All problems, from the start."""
        policy = TransformersPolicy(
            self.policy.model, self.policy.tokenizer, name=self.policy.name, remember=REMEMBER
        )
        scorer = IncrementalScorer(self.model, name="prm", max_tokens=REMEMBER)
        beam = BeamSearch(width=DRAWS // EXPAND, expand=EXPAND, retire_finished=True, rule="best_of_n")
        with AnswerChecker("exact") as checker:
            grader = Grader(checker=checker, styles=STYLES)
            start = self.clock()
            results = asyncio.run(
                run_search(
                    beam, problems, policy, scorer, steps=STEPS, aggregation="last", grader=grader, seed=seed
                )
            )
            seconds = self.clock() - start
        if lost := [result.error for result in results if result.error]:
            raise SystemExit(f"{len(lost)} problems had failures, such as: {lost[0]}")
        return Run(
            seconds=seconds,
            right=[result.outcome is True for result in results],
            read=sum(result.usage.prompt_tokens for result in results),
            written=sum(result.usage.completion_tokens for result in results),
            scored=sum(result.usage.verifier_tokens for result in results),
        )


class Theirs:
    """search-and-learn in its own process, alive until the block ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name)
        settings, self.log = folder / "settings.json", folder / "log"
        environment = os.environ | {
            "PYTHONPATH": str(options.sal / "src"),
            "OMP_NUM_THREADS": str(options.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        worker = Path(__file__).with_name("sal_worker.py")
        read, write = os.pipe()
        settings.write_text(json.dumps(rival_settings(options) | {"answers": write}))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [options.sal_python, str(worker), str(settings)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, pass_fds=[write], text=True,
            )  # fmt: skip
        os.close(write)
        self.answers = os.fdopen(read)
        self.about = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.stdin:
            self.process.stdin.close()  # it ends by itself
        self.process.wait()
        self.answers.close()
        self.folder.cleanup()

    def search(
        self, problems: Sequence[Problem], scorer: Scorer | None = None, *, batched: bool = False
    ) -> Run:
        """All problems; with ``scorer``, its scores of what they hand out must be theirs."""
        if self.process.stdin is None:
            raise SystemExit("search-and-learn's process takes no questions")
        request = {"problems": [problem.text for problem in problems], "batched": batched}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        found = self._answer()
        texts = found["predictions"]
        if scorer:
            require_equal_scores(scorer, problems, texts, found["scores"])
        with AnswerChecker("exact") as checker:
            grades = Grader(checker=checker, styles=STYLES).grade(
                [Solution(text=text) for text in texts], [one.answer for one in problems]
            )
        return Run(
            seconds=found["seconds"],
            right=[grade.outcome is True for grade in grades],
            read=found["read"],
            written=found["written"],
            scored=found["scored"],
        )

    def _answer(self) -> dict[str, Any]:
        line = self.answers.readline()
        if not line:
            self.process.wait()
            raise SystemExit(f"search-and-learn's process ended:\n{self.log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def rival_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the other process is given."""
    return {
        "threads": options.threads,
        "clock": options.clock,
        "config": {
            "model_path": str(POLICY),
            "prm_path": str(options.prm.resolve()),
            "n": DRAWS,
            "beam_width": EXPAND,
            "num_iterations": ROUNDS,
            "temperature": TEMPERATURE,
            "max_tokens": TOKENS,
            "prm_batch_size": DRAWS,
            "agg_strategy": "last",
            "filter_duplicates": True,
            "sort_completed": True,
            "seed": 0,
        },
        # without a block size prefixes below 128 tokens would not be kept
        "vllm": {"enforce_eager": options.eager, "max_model_len": 256, "block_size": 32},
    }


def require_equal_scores(
    scorer: Scorer, problems: Sequence[Problem], texts: Sequence[str], scores: Sequence[Sequence[float]]
) -> None:
    """Both must have used one PRM: without equal scores the comparison would be void."""
    handed = [row for row in zip(problems, texts, scores, strict=True) if row[1].strip()]
    items = [
        ProblemTrace(problem=one, trace=segment_trace(Trace(problem_id=one.id, text=text), Line()))
        for one, text, _ in handed
    ]
    for record, (_, _, theirs) in zip(scorer.score_traces(items), handed, strict=True):
        if len(record.scores) != len(theirs):
            raise SystemExit(f"trace {record.trace_id}: {len(record.scores)} and {len(theirs)} scores")
        apart = [abs((a or 0.0) - b) for a, b in zip(record.scores, theirs, strict=True)]
        if max(apart, default=0.0) > 1e-3:
            raise SystemExit(f"scores of trace {record.trace_id} differ by {max(apart):.2g}")


def has_rival(options: argparse.Namespace) -> bool:
    """Whether search-and-learn and vLLM are there; else prints how to install what is missing."""
    missing = []
    if not (options.sal / "src" / "sal").is_dir():
        missing.append(f"git clone https://github.com/huggingface/search-and-learn {options.sal}")
    ask = [
        options.sal_python,
        "-c",
        "import sys; from importlib.util import find_spec; sys.exit(not find_spec('vllm'))",
    ]
    if subprocess.run(ask, capture_output=True, check=False).returncode:
        packages = "vllm accelerate datasets latex2sympy2==1.9.1 pebble word2number"
        missing.append(f"{options.sal_python} -m pip install {packages}")
    if missing:
        left_out("search-and-learn", "to install it:\n  " + "\n  ".join(missing))
    return not missing


def measure(
    options: argparse.Namespace, count: int, *, rival: bool
) -> tuple[dict[str, list[Run]], dict[str, Any]]:
    """All in turn, or ours alone without ``rival``; also the versions of the other environment."""
    made = generate_problems(count + 1, seed=options.seed)
    warm, problems = made[:1], made[1:]
    ours = Ours(options.prm, CLOCKS[options.clock])
    runs: dict[str, list[Run]] = {name: [] for name in (("ours", *RIVALS) if rival else ("ours",))}
    with ExitStack() as stack:
        theirs = stack.enter_context(Theirs(options)) if rival else None
        ours.search(warm, seed=0)
        if theirs:
            theirs.search(warm, Scorer(ours.model, name="prm"))
        for repetition in range(options.repeats):
            runs["ours"].append(ours.search(problems, seed=repetition))
            if theirs:
                scorer = Scorer(ours.model, name="prm")
                for name in RIVALS:
                    runs[name].append(theirs.search(problems, scorer, batched=name == "batched"))
            for name, of in runs.items():
                run = of[-1]
                print(
                    f"{repetition + 1} {name:7} {run.seconds:8.2f} s  {100 * np.mean(run.right):5.1f} %  "
                    f"{run.written:8} tokens written, {run.read:8} read, {run.scored:8} scored",
                    flush=True,
                )
    return runs, theirs.about if theirs else {}


def figures(runs: dict[str, list[Run]]) -> Figures:
    """Time and accuracy against the rival; without one, our seconds."""
    ours = runs["ours"]
    if "theirs" not in runs:
        return [over_rounds("seconds_without_rival", [run.seconds for run in ours], "s")]
    theirs = runs["theirs"]
    right, wanted = (np.mean([run.right for run in side], axis=0) for side in (ours, theirs))
    gap = bootstrap_mean(right - wanted, rng=np.random.default_rng(0))
    share = float(right.mean() / wanted.mean()) if wanted.any() else None
    return [
        compared("time_vs_search_and_learn", ours, theirs),
        compared("time_vs_batched_search_and_learn", ours, runs["batched"]),
        figure("accuracy_difference", 100 * gap, "points", share),
    ]


def compared(name: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Figure:
    """Their seconds divided by ours."""
    return times(name, [b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True)])


def main() -> None:
    """Command line."""
    options = _options()
    rival = has_rival(options)
    options.prm = options.prm or trained_prm(options.runs, 0, quick=options.quick)
    count = options.problems or (25 if options.quick else 100)
    runs, about = measure(options, count, rival=rival)
    setting = {
        "rival": about | rival_settings(options)["vllm"] if rival else None,
        "clock": options.clock,
        "problems": count,
        "seed": options.seed,
        "draws": DRAWS,
        "beam_width": EXPAND,
        "rounds": ROUNDS,
        "max_tokens": TOKENS,
        "temperature": TEMPERATURE,
    }
    write(
        options, show(figures(runs)), **setting, **{name: list(map(summary, of)) for name, of in runs.items()}
    )


def summary(run: Run) -> dict[str, float]:
    """A repetition in numbers."""
    return {
        "seconds": round(run.seconds, 3),
        "accuracy": float(np.mean(run.right)),
        "tokens_read": run.read,
        "tokens_written": run.written,
        "tokens_scored": run.scored,
    }


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, "25 problems, by CPU time on one thread: a few minutes")
    parser.add_argument(
        "--sal", type=Path, default=Path("search-and-learn"), help="checkout of huggingface/search-and-learn"
    )
    parser.add_argument("--sal-python", default=sys.executable, help="interpreter that has vllm")
    parser.add_argument("--prm", type=Path, help="directory of the reward model")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/prm_vs_orm"), help="runs of prm_vs_orm, for the PRM"
    )
    parser.add_argument(
        "--eager", action="store_true", help="vLLM does not compile the policy: starts sooner"
    )
    parser.add_argument("--problems", type=int, help="100; with --quick 25")
    parser.add_argument("--seed", type=int, default=20_261, help="of the problems")
    parser.add_argument("--repeats", type=int, default=3)
    add_clock(parser)
    options = parser.parse_args()
    prepare(options)
    return options


if __name__ == "__main__":
    main()
