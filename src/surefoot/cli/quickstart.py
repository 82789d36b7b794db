"""``surefoot quickstart``: ordinary commands, from problems of the lab to an audited reward model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from surefoot.cli import app
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.io import write_records
from surefoot.io.atomic import atomic_file
from surefoot.io.lineage import MANIFEST, write_outputs
from surefoot.io.runs import make_manifest
from surefoot.lab.world import generate_problems

_GRADED: Final = "--max-tokens 96 --extract phrase --equality exact"


class Quickstart(Command):
    """Run the whole pipeline on the built-in lab, as ordinary commands that can be copied.

    Solutions are sampled, their steps labelled by Monte Carlo rollouts, and a reward model is trained,
    audited and used to choose answers to other problems. Takes about two minutes on two idle cores, without
    network or GPU. Each command is printed before it runs; all are in `commands.sh` of the directory. If the
    command is stopped, the same command resumes. Ends with what the model gains over one sample and over a
    majority vote, and the report `best-of-n.html`.

    Example: `surefoot quickstart --out runs/quickstart`
    """

    out: Annotated[Path, Flag(short="-o", transient=True, directory=True)] = Path("runs/quickstart")
    """Directory of the run."""
    train_problems: int = Field(default=220, ge=1, description="Problems whose solutions are labelled.")
    test_problems: int = Field(default=250, ge=1, description="Problems to choose answers to.")
    samples: int = Field(default=8, ge=1, description="Solutions of each of these.")
    seed: int = Field(default=0, description="Seed of the training problems, and of all that is random.")
    test_seed: int = Field(
        default=1_000_000, description="Seed of the test problems, which are not used in training."
    )

    def run(self) -> None:
        need("torch", "the quickstart")
        steps = self.steps()
        script = "".join(f"# {title}\nsurefoot {shlex.join(words)}\n\n" for title, _, words in steps)
        stored = self.out / "commands.sh"
        if stored.exists() and stored.read_text(encoding="utf-8") != script:
            raise RunError(f"{stored} has other commands: the settings differ; name another --out")
        if not stored.exists() and self.out.is_dir() and any(self.out.iterdir()):
            raise RunError(f"{self.out} is a directory with other files in it; name a new one for --out")
        self.out.mkdir(parents=True, exist_ok=True)
        with atomic_file(stored) as file:
            file.write(script.encode())
        self.write_problems()
        for number, (title, result, words) in enumerate(steps, start=1):
            note(f"\n# {number} of {len(steps)}: {title}\nsurefoot {shlex.join(words)}")
            if _finished(self.out / result):
                note("done already")
                continue
            # what an interrupted command left is continued, or replaced by the same
            app.main([*words, "--force"], prog_name="surefoot", standalone_mode=False)

    def write_problems(self) -> None:
        """The problems of the lab; none is in both files."""
        test = generate_problems(self.test_problems, seed=self.test_seed)
        train = generate_problems(self.train_problems, seed=self.seed, exclude=test)
        files = {self.out / "train-problems.jsonl": train, self.out / "test-problems.jsonl": test}
        for path, problems in files.items():
            write_records(path, problems)
        manifest = make_manifest(self.path(), self.resolved(), {})
        write_outputs(list(files), manifest | {"generated": True})  # from no source

    def steps(self) -> list[tuple[str, str, list[str]]]:
        """Title, result and words of each command."""
        out, seed = shlex.quote(str(self.out)), self.seed
        train = f"{out}/train-traces.jsonl --problems {out}/train-problems.jsonl"
        test = f"{out}/test-traces.jsonl --problems {out}/test-problems.jsonl"
        steps = [
            (
                "Sample solutions with the lab's policy, a small language model that makes mistakes.",
                "train-traces.jsonl",
                f"sample {out}/train-problems.jsonl --policy lab --n 2 --seed {seed} {_GRADED}",
            ),
            (
                "Label each step by rollouts: how often does the policy finish correctly from there?",
                "train-labels.jsonl",
                f"label {train} mc:rollouts=4 --policy lab --seed {seed} {_GRADED} --workers 2",
            ),
            (
                "Train a process reward model on the labels.",
                "prm",
                f"train prm {train} --labels {out}/train-labels.jsonl --base lab --epochs 4 --max-length 256 "
                f"--validation 0 --seed {seed}",
            ),
            (
                "Sample solutions of other problems.",
                "test-traces.jsonl",
                f"sample {out}/test-problems.jsonl --policy lab --n {self.samples} "
                f"--seed {seed + self.test_seed} {_GRADED}",
            ),
            ("Score their steps.", "scores.jsonl", f"score {test} --prm {out}/prm"),
            (
                "Audit the model on some problems: does its score follow the steps or the style?",
                "audit.json",
                f"audit prm={out}/prm --test gaming:rounds=0,outcome --traces {test} --labels lab --limit 40",
            ),
            (
                "Choose answers with the scores; how often are they correct, and is a majority vote as good?",
                "best-of-n.json",
                f"evaluate prm={out}/scores.jsonl --as best-of-n --traces {test}",
            ),
        ]
        paths = [out if result.endswith(".json") else f"{out}/{result}" for _, result, _ in steps]
        return [
            (title, result, shlex.split(f"{words} --out {path}"))
            for (title, result, words), path in zip(steps, paths, strict=True)
        ]


def _finished(result: Path) -> bool:
    """Whether a command has recorded its result, a file or a run directory."""
    if result.suffix:
        return result.exists() and result.with_name(f"{result.name}.{MANIFEST}").exists()
    return (result / "done" / "train.json").exists()
