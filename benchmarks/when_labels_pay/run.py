"""When do step labels pay? PRM less ORM by chain length, recoverability, label noise and samples."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.common.figures import arguments, show, write
from benchmarks.when_labels_pay.cells import averages, cells_of, draw_map, map_figures
from benchmarks.when_labels_pay.chain_length import Measured, Sizes, measure

SEEDS = (10, 11, 12, 13, 14, 15)
"""Seeds 0 and 1000 were used while this was written."""


def main() -> None:
    """Command line."""
    torch.set_num_threads(1)
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", help="seeds instead of the published ones")
    parser.add_argument("--out", type=Path, default=Path("runs/open_questions"), help="measurements, picture")
    options = parser.parse_args()
    sizes = Sizes(traces=32, tuning=25, test=50) if options.quick else Sizes()
    seeds = options.seeds or ((0,) if options.quick else SEEDS)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Measured] = []
    for seed in seeds:
        kept = options.out / f"map-{'quick-' if options.quick else ''}{seed}.jsonl"
        if not kept.exists():
            measured = list(measure(seed, sizes))
            kept.write_text("".join(json.dumps(asdict(row)) + "\n" for row in measured))
            print(f"seed {seed} done", flush=True)
        rows += [Measured(**json.loads(line)) for line in kept.read_text().splitlines()]
    cells = cells_of(rows)
    draw_map(cells, options.out / "when-step-labels-pay.svg")
    write(options, show(map_figures(cells, seeds) + averages(rows)), seeds=list(seeds))


if __name__ == "__main__":
    main()
