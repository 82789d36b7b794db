"""``surefoot quickstart``: ordinary commands, from problems of the lab to an audited reward model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Final

from pydantic import Field

from surefoot.cli import app
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo, echo_wrapped, note
from surefoot.errors import RunError
from surefoot.extras import need
from surefoot.io import write_records
from surefoot.io.atomic import atomic_file
from surefoot.io.lineage import MANIFEST, write_outputs
from surefoot.io.runs import make_manifest
from surefoot.lab import generate_problems

_GRADED: Final = "--max-tokens 120 --extract phrase --equality exact"
_REAL: Final = Path(__file__).with_name("real")
"""Real solutions and runs with labels of people; NOTICE.md says whose they are and how they were chosen."""
_PRM: Final = "Qwen2.5-Math-PRM-7B"
"""The scorer of the real solutions."""
_SHOWN: Final = 280
"""Characters of a problem or a step in the terminal."""
_YOURS: Final = """
# Now your file: what does it contain, and which steps look wrong?
  surefoot inspect FILE

# With labels of people: which first errors do scores or rules find?
  surefoot evaluate NAME=SCORES --as processbench --data FILE --out OUT
  surefoot evaluate NAME=LABELS --as runs --traces FILE --problems FILE --labels FILE --out OUT"""


class Quickstart(Command):
    """Show step verdicts on real text, then run the whole pipeline on the built-in lab.

    First, in seconds, a published reward model on 100 solutions and rules on 10 agent runs, beside labels of
    people: what they find and miss, and their false alarms. Then solutions of word problems are sampled,
    their steps labelled by Monte Carlo rollouts, and a reward model is trained, audited and used to choose
    answers to other problems, next to the lab's own model and a check of equations. Takes about two minutes
    of work on two idle cores, without network or GPU. Each command is printed before it runs; all are in
    `commands.sh` of the directory. If the command is stopped, the same command resumes. Ends with what both
    models gain over one sample and over a majority vote, and the report `best-of-n.html`.

    Example: `surefoot quickstart --out runs/quickstart`
    """

    out: Annotated[Path, Flag(short="-o", transient=True, directory=True)] = Path("runs/quickstart")
    """Directory of the run."""
    train_problems: int = Field(default=500, ge=1, description="Problems whose solutions are labelled.")
    test_problems: int = Field(default=200, ge=1, description="Problems to choose answers to.")
    samples: int = Field(default=8, ge=1, description="Solutions of each of these.")
    seed: int = Field(default=0, description="Seed of the training problems, and of all that is random.")
    test_seed: int = Field(
        default=4_000_000, description="Seed of the test problems, which are not used in training."
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
        self.write_real()
        self.write_problems()
        for number, (title, result, words) in enumerate(steps, start=1):
            note(f"\n# {number} of {len(steps)}: {title}\nsurefoot {shlex.join(words)}")
            if _finished(self.out / result):
                note("done already")
                continue
            # what an interrupted command left is continued, or replaced by the same
            app.main([*words, "--force"], prog_name="surefoot", standalone_mode=False)
            if result.endswith(("processbench.json", "runs.json")):
                _show_examples(self.out / result)
        note(_YOURS)

    def write_real(self) -> None:
        """Copies of the real solutions, scores and runs, with their licences."""
        (self.out / "real").mkdir(exist_ok=True)
        for source in _REAL.iterdir():
            copy = self.out / "real" / source.name
            if not copy.exists():
                with atomic_file(copy) as file:
                    file.write(source.read_bytes())

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
        real, runs = f"{out}/real", f"{out}/real/runs"
        records = f"--problems {runs}/problems.jsonl"
        steps = [
            (
                f"On real text: which first errors does {_PRM} find? People labelled 100 solutions.",
                "real/processbench.json",
                f"evaluate {_PRM}={real}/scores.jsonl --as processbench --data gsm8k={real}/solutions.jsonl",
            ),
            (
                "Read ten runs of agents, with labels of people.",
                "real/runs/problems.jsonl",
                f"import {real}/agent-runs.jsonl",
            ),
            (
                "Check their tool calls by rule, without a model.",
                "real/runs/rules.jsonl",
                f"label {runs}/traces.jsonl verify:rules=tool-calls {records}",
            ),
            (
                "Which first errors do the rules find?",
                "real/runs.json",
                f"evaluate rules={runs}/rules.jsonl --as runs:unknown=good {records} "
                f"--traces {runs}/traces.jsonl --labels {runs}/labels.jsonl",
            ),
            (
                "Sample solutions of word problems with the lab's policy, a small model with misconceptions.",
                "train-traces.jsonl",
                f"sample {out}/train-problems.jsonl --policy lab --n 1 --seed {seed} {_GRADED}",
            ),
            (
                "Label each step by rollouts: how often does the policy finish correctly from there?",
                "train-labels.jsonl",
                f"label {train} mc:rollouts=4 --policy lab --seed {seed} {_GRADED} --workers 2",
            ),
            (
                "Train a process reward model on the labels.",
                "prm",
                f"train prm {train} --labels {out}/train-labels.jsonl --base lab --epochs 4 "
                f"--learning-rate 1e-3 --validation 0 --seed {seed}",
            ),
            (
                "Sample solutions of other problems.",
                "test-traces.jsonl",
                f"sample {out}/test-problems.jsonl --policy lab --n {self.samples} "
                f"--seed {seed + self.test_seed} {_GRADED}",
            ),
            ("Score their steps with your model.", "scores.jsonl", f"score {test} --prm {out}/prm"),
            (
                "Score them with the lab's model, which learned from 16,000 exactly labelled solutions.",
                "lab-scores.jsonl",
                f"score {test} --prm lab",
            ),
            (
                "Check their equations, without a model.",
                "equations.jsonl",
                f"label {test} verify:rules=equations",
            ),
            (
                "Find out the truth of each step, which only such a world tells.",
                "truth.jsonl",
                f"label {test} verify:rules=lab",
            ),
            (
                "Which first errors does each find? Equations show slips; wrong reasoning takes a reader.",
                "errors/runs.json",
                f"evaluate equations={out}/equations.jsonl prm={out}/scores.jsonl lab={out}/lab-scores.jsonl "
                f"--as runs:unknown=good,threshold=0.5 --traces {test} --labels {out}/truth.jsonl",
            ),
            (
                "Audit your model on some problems: does its score follow the steps or the style?",
                "audit.json",
                f"audit prm={out}/prm --test gaming,outcome --traces {test} --labels {out}/truth.jsonl "
                "--limit 40",
            ),
            (
                "Choose among the solutions whose equations hold, by the lab's model.",
                "chosen.jsonl",
                f"select {out}/test-traces.jsonl --scores {out}/lab-scores.jsonl --rule weighted_vote "
                f"--among {out}/equations.jsonl",
            ),
            (
                "Choose answers with the scores; how often are they correct, and is a majority vote as good?",
                "best-of-n.json",
                f"evaluate prm={out}/scores.jsonl lab={out}/lab-scores.jsonl --as best-of-n --traces {test}",
            ),
        ]
        paths = [_out_of(f"{out}/{result}") for _, result, _ in steps]
        return [
            (title, result, shlex.split(f"{words} --out {path}"))
            for (title, result, words), path in zip(steps, paths, strict=True)
        ]


def _out_of(result: str) -> str:
    """``--out`` of the command: the directory of a report or of imported records, else the result."""
    is_directory = result.endswith(".json") or result.endswith("runs/problems.jsonl")
    return result.rpartition("/")[0] if is_directory else result


def _show_examples(report: Path) -> None:
    """Print the examples of a report: an error that was found, one that was not, and a false alarm."""
    examples: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["examples"]
    for example in examples:
        echo(f"\n{example['title']} ({example['trace_id']})")
        _show("Problem: ", example["problem"])
        for step in example["steps"]:
            if step["wrong"] or step["rejected"]:
                score = "" if step["score"] is None else f", score {step['score']:.2g}"
                _show(f"Step {step['number']}{score}: ", step["text"])
        echo_wrapped(f"  {example['note']}", indent="  ")


def _show(title: str, text: str) -> None:
    echo_wrapped(f"  {title}{shorten(text, _SHOWN, placeholder=' …')}", indent="    ")


def _finished(result: Path) -> bool:
    """Whether a command has recorded its result, a file or a run directory."""
    if result.suffix:
        return result.exists() and result.with_name(f"{result.name}.{MANIFEST}").exists()
    return (result / "done" / "train.json").exists()
