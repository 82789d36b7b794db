"""Labels, scores, guard and training for agents. Each part has its own file, which describes its figures.

    python -m benchmarks.agents.run [--only PART ...] [--data DIR] [--quick] [--json FILE]

- ``real`` (``real.py``): AgentProcessBench with baselines and stored judges, and tau-bench;
  ``first_error_vs_floor_agentprocessbench``;
- ``learned`` (``learned.py``): scorers on a small language model's states, on AgentProcessBench;
- ``bfcl``, ``shop_faults`` (``faults.py``): injected faults and correct variants of gold runs, with
  executable worlds; ``fault_detection_bfcl``, ``fault_detection_shop``;
- ``lab`` (``lab.py``): the shop's labellers against the truth; ``prm_vs_orm_best_of_16``;
- ``guard`` (``guard.py``): ``guard_violations``, ``guard_success_difference``, ``injection_shift``;
- ``rl`` (``rl.py``): ``turn_credit_samples_to_outcome_end``.

``real`` and ``learned`` need ``--data``: a folder with ``agentprocessbench_hotpotqa.jsonl.gz``,
``apb_human_vs_judges.jsonl.gz`` and ``tau_bench_gpt4o_airline.json.gz``. A part without its data
is skipped and reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.figures import measure
from surefoot.errors import MissingExtraError

Figures = list[dict[str, Any]]


def real(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.real import real_figures

    return real_figures(options.quick, _given(options, "data"), options.tau_bench)


def learned(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.learned import learned_figures

    data, model, states = (_given(options, name) for name in ("data", "model", "states"))
    return learned_figures(options.quick, data, model, states, options.adapters)


def bfcl(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.faults import bfcl_figures

    return bfcl_figures(options.quick)


def shop_faults(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.faults import shop_figures

    return shop_figures(options.quick)


def lab(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.lab import lab_figures

    return lab_figures(options.quick, options.model)


def guard(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.guard import guard_and_injections

    return guard_and_injections(options.quick, options.prm)


def rl(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.rl import rl_figures

    return rl_figures(options.quick)


def rl_shop(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.rl_shop import shop_rl_figures

    return shop_rl_figures(options.quick, options.first_seed)


PARTS: Mapping[str, Callable[[argparse.Namespace], Figures]] = {
    part.__name__: part for part in (real, learned, bfcl, shop_faults, lab, guard, rl, rl_shop)
}


def _given(options: argparse.Namespace, name: str) -> Path:
    """The folder of an option. Raises ``MissingExtraError`` if it was not given or is not there."""
    folder: Path | None = getattr(options, name)
    if folder is None or (name != "states" and not folder.is_dir()):
        raise MissingExtraError(f"--{name} names no folder")
    return folder


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the three files named above")
    parser.add_argument("--tau-bench", type=Path, help="real: clone of tau-bench, for its tools' schemas")
    parser.add_argument(
        "--model", type=Path, help="learned, lab (as judge): SmolLM2-135M (benchmarks/common/smollm2.py)"
    )
    parser.add_argument("--states", type=Path, help="learned: folder for its states, to be used again")
    parser.add_argument("--adapters", type=Path, help="learned: train adapters of it, too, in this folder")
    parser.add_argument("--prm", help="guard: reward model whose scores instructions may move")
    parser.add_argument("--first-seed", type=int, default=0, help="rl_shop: methods were developed on 0 to 2")
    measure(parser, PARTS)


if __name__ == "__main__":
    main()
