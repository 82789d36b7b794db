"""The quick forms of all benchmarks, one after another: ``python -m benchmarks.quick [NAME ...]``.

A failure does not stop the others. A rival or data that are not here are a note, not a failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.figures import DATA, ROOT

LOGS = ROOT / "build" / "benchmarks"
LONGEST_S = 3600


@dataclass(frozen=True)
class Quick:
    """The quick form of one benchmark."""

    module: str
    arguments: tuple[str, ...] = ()
    needs: Path | None = None
    """A file or folder without which nothing can be measured."""


SMOLLM2 = ROOT / "smollm2"
"""Where ``python -m benchmarks.common.smollm2 smollm2`` writes the model."""
WORDS = ROOT / "runs" / "words"
BENCHMARKS = {
    "agents": Quick("agents.run", ("--data", str(DATA / "agent"))),
    "answers": Quick("answers.run"),
    "attacks": Quick("fair_turns.attacks"),
    "code": Quick("code.run", needs=DATA / "code"),
    "equations": Quick("equations.run", ("--data", str(DATA), "--show", "0"), DATA / "prm800k"),
    "fair_turns": Quick("fair_turns.run"),
    "streams": Quick("fair_turns.streams"),
    "faithfulness": Quick("faithfulness.run"),
    "flags": Quick("monitor.flags", needs=DATA / "processbench"),
    "gateway": Quick("gateway.run"),
    "generation": Quick("performance.generation"),
    "gpu": Quick("performance.gpu"),
    "guard": Quick("guard.run"),
    "incremental": Quick("performance.incremental"),
    "judge": Quick("judge.run"),
    "kill_resume": Quick("kill_resume.run"),
    "labels": Quick("labels.run"),
    "monitor": Quick("monitor.run"),
    "prm800k": Quick("prm800k.run", ("--data", str(DATA), "--model", str(SMOLLM2)), SMOLLM2),
    "prm_vs_orm": Quick("prm_vs_orm.run"),
    "beam": Quick("performance.beam"),
    "rl": Quick("rl.run", ("--prms", "runs/prm_vs_orm")),
    "rules": Quick("rules.run"),
    "sandbox": Quick("sandbox.run"),
    "scale": Quick("scale.run"),
    "scoring": Quick("performance.scoring"),
    "search": Quick("search.run"),
    "store": Quick("scale.store"),
    "training": Quick("performance.training"),
    "verifiers": Quick("verifiers.run", ("--data", str(DATA)), DATA / "calib"),
    "when_labels_pay": Quick("when_labels_pay.run"),
    "words": Quick("worlds.words.run", ("--out", f"{WORDS}/quick")),
    "words_rl": Quick("worlds.words.rl", ("--out", f"{WORDS}/quick-rl")),
}


def run(name: str, quick: Quick) -> tuple[str, float, list[str]]:
    """How it ended, seconds, and what it left out."""
    if quick.needs is not None and not quick.needs.exists():
        return "left out", 0.0, [f"{quick.needs} is not there"]
    command = [sys.executable, "-m", f"benchmarks.{quick.module}", "--quick", *quick.arguments]
    log, begun = LOGS / f"{name}.txt", time.monotonic()
    with log.open("w") as stream:
        command += ["--json", str(LOGS / f"{name}.json")]
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, timeout=LONGEST_S
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    said = log.read_text(errors="replace").splitlines()
    if code:
        print(*said[-15:], sep="\n", flush=True)
    notes = [line for line in said if line.startswith("left out: ")]
    return "passed" if code == 0 else f"failed ({code})", time.monotonic() - begun, notes


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], metavar="NAME", help="these alone")
    names = parser.parse_args().names or list(BENCHMARKS)
    LOGS.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in names:
        results[name] = ending, seconds, notes = run(name, BENCHMARKS[name])
        print(f"{name}: {ending}, {seconds:.0f} s", *notes, sep="\n  ", flush=True)
    print(f"\n| benchmark | ended | seconds | left out |\n|---|---|---|---|  (logs: {LOGS})")
    for name, (ending, seconds, notes) in results.items():
        print(f"| {name} | {ending} | {seconds:.0f} | {len(notes) or ''} |")
    sys.exit(any(ending.startswith("failed") for ending, *_ in results.values()))


if __name__ == "__main__":
    main()
