"""The field's open questions, answered with numbers. Each part has its own file, which describes its figures.

    python -m benchmarks.questions.run [--only PART ...] [--seeds N ...] [--out DIR] [--data DIR]
        [--map FILE] [--quick] [--json FILE]

- ``map`` (``chain_length.py``): when do step labels pay? PRM less ORM by chain length, recoverability,
  label noise and number of samples; ``map_cells``, ``cells_prm_ahead``, ``cells_no_difference``,
  ``cells_orm_ahead``, and ``prm_minus_orm_length_*`` for the chain length at which the two converge.
  ``--map`` writes the file that ``surefoot advise`` reads, ``--out`` gets the picture;
- ``evaluators`` (``labels.py``): labels of weaker and stronger labellers, the PRM trained on them,
  and assistance by a PRM's marks;
- ``transfer`` (``labels.py``): train on one world or domain, test on each;
- ``audits`` (``audits.py``): path dependence and memorized problems, with ``surefoot audit``'s
  functions, in the lab and on real data.

Granularity, bad arguments and sycophancy are commands of their own: docs/results/audits.md. The last three
use real data from ``--data``, a folder with ``processbench``, ``bigbench_mistake``, ``prm800k``,
``agent``, ``bon`` and ``math``; without it they measure the lab alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.figures import measure

Figures = list[dict[str, Any]]

QUICK_SEEDS = (0,)
SEEDS = (10, 11, 12, 13, 14, 15)
"""Seeds 0 and 1000 were used while the parts were written."""


def map_(options: argparse.Namespace) -> Figures:
    from benchmarks.questions.cells import averages, cells_of, draw_map, map_figures, write_map
    from benchmarks.questions.chain_length import Measured, Sizes
    from benchmarks.questions.chain_length import measure as measure_seed

    sizes = Sizes(traces=32, tuning=25, test=50) if options.quick else Sizes()
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    rows: list[Measured] = []
    for seed in seeds:
        kept = options.out / f"map-{'quick-' if options.quick else ''}{seed}.jsonl"
        if kept.exists():
            rows += [Measured(**json.loads(line)) for line in kept.read_text().splitlines()]
            continue
        measured = list(measure_seed(seed, sizes))
        options.out.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(json.dumps(asdict(row)) + "\n" for row in measured))
        rows += measured
        print(f"map: seed {seed} done", flush=True)
    cells = cells_of(rows)
    draw_map(cells, options.out / "when-step-labels-pay.svg")
    if options.map:
        write_map(cells, seeds, options.map)
    return map_figures(cells, seeds) + averages(rows)


def evaluators(options: argparse.Namespace) -> Figures:
    from benchmarks.questions.labels import evaluator_figures

    return evaluator_figures(options.seeds or (QUICK_SEEDS if options.quick else SEEDS), options.data)


def transfer(options: argparse.Namespace) -> Figures:
    from benchmarks.questions.labels import transfer_figures

    return transfer_figures(options.data, 400)


def audits(options: argparse.Namespace) -> Figures:
    from benchmarks.questions.audits import audit_figures

    return audit_figures(options.data, quick=options.quick)


PARTS: Mapping[str, Callable[[argparse.Namespace], Figures]] = {
    "map": map_,
    "evaluators": evaluators,
    "transfer": transfer,
    "audits": audits,
}


def main() -> None:
    """Command line."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds instead of the published ones")
    parser.add_argument("--out", type=Path, default=Path("runs/open_questions"), help="measurements, picture")
    parser.add_argument("--data", type=Path, help="folder of the real data")
    parser.add_argument("--map", type=Path, help="write the map of `surefoot advise` to this file")
    measure(parser, PARTS)


if __name__ == "__main__":
    main()
