"""``python -m benchmarks.readers NAME FILE --out DIR``: a data set as records."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.readers import READERS, RECORDS
from surefoot.io import ReadReport, write_records


def main() -> None:
    """Read one file, write its problems, traces and labels, and print what was skipped."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers")
    parser.add_argument("name", choices=sorted({*READERS, *RECORDS}))
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="directory for the records")
    options = parser.parse_args()
    report = ReadReport()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.name in RECORDS:
        read, name = RECORDS[options.name]
        write_records(options.out / name, read(options.file, report=report))
        print(report.summary())
        return
    items = list(READERS[options.name](options.file, report=report))
    write_records(options.out / "problems.jsonl", {item.problem.id: item.problem for item in items}.values())
    write_records(options.out / "traces.jsonl", [item.trace for item in items])
    write_records(options.out / "labels.jsonl", [label for item in items for label in item.labels])
    print(report.summary())


if __name__ == "__main__":
    main()
