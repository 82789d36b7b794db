"""Labels, scores, guard and training for agents; each part has its own file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from benchmarks.common.figures import Figures, arguments, measure
from surefoot.errors import MissingExtraError


def part(module: str, *names: str) -> Callable[[argparse.Namespace], Figures]:
    """A part whose figures depend on these options; its module is imported where it is measured."""

    def measured(options: argparse.Namespace) -> Figures:
        figures = import_module(f"benchmarks.agents.{module.partition(':')[0]}")
        given = (_given(options, name) if name == "data" else getattr(options, name) for name in names)
        found: Figures = getattr(figures, module.partition(":")[2])(*given)
        return found

    return measured


PARTS: Mapping[str, Callable[[argparse.Namespace], Figures]] = {
    "real": part("real:real_figures", "quick", "data", "tau_bench"),
    "rules": part("rules:rule_figures", "quick", "data"),
    "bfcl": part("faults:bfcl_figures", "quick"),
    "shop_faults": part("faults:shop_figures", "quick"),
    "lab": part("lab:lab_figures", "quick", "model"),
    "guard": part("guard:guard_and_injections", "quick", "prm"),
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
    measure(parser, PARTS)


if __name__ == "__main__":
    main()
