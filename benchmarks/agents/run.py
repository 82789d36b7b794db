"""Labels, scores, guard and training for agents; each part has its own file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common.figures import Figures, arguments, measure
from surefoot.errors import MissingExtraError


def real(options: argparse.Namespace) -> Figures:
    from benchmarks.agents.real import real_figures

    return real_figures(options.quick, _given(options, "data"), options.tau_bench)


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
    part.__name__: part for part in (real, bfcl, shop_faults, lab, guard, rl, rl_shop)
}


def _given(options: argparse.Namespace, name: str) -> Path:
    """The folder of an option. Raises ``MissingExtraError`` if it was not given or is not there."""
    folder: Path | None = getattr(options, name)
    if folder is None or not folder.is_dir():
        raise MissingExtraError(f"--{name} names no folder")
    return folder


def main() -> None:
    """Command line."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, help="folder of AgentProcessBench and tau-bench, see README.md")
    parser.add_argument("--tau-bench", type=Path, help="real: clone of tau-bench, for its tools' schemas")
    parser.add_argument("--model", type=Path, help="lab: SmolLM2-135M, as judge (common/smollm2.py)")
    parser.add_argument("--prm", help="guard: reward model whose scores instructions may move")
    parser.add_argument("--first-seed", type=int, default=0, help="rl_shop: methods were developed on 0 to 2")
    measure(parser, PARTS)


if __name__ == "__main__":
    main()
