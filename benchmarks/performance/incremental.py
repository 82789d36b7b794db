"""Scores in a beam search: new tokens alone against the whole prefix again in each round."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.common.clocks import Clock, prepare
from benchmarks.common.figures import Figures, show, times, write
from benchmarks.performance.scoring import (
    Run,
    Subject,
    compared,
    lab_groups,
    padded,
    parse,
    real_groups,
    reward_model,
    wanted_base,
)
from benchmarks.worlds.digits import TRUNK
from surefoot.models import IncrementalScorer, Scorer
from surefoot.protocols import ProblemTrace

BEAMS, STEPS = 16, 10


def rounds(group: list[ProblemTrace], steps: int) -> list[list[ProblemTrace]]:
    """The beams after each step: beam k is the beginning of candidate k."""
    return [[beginning(item, depth) for item in group] for depth in range(1, steps + 1)]


def beginning(item: ProblemTrace, steps: int) -> ProblemTrace:
    """The first steps of a trace, as a search would hold them."""
    trace = item.trace
    whole = {"id": "", "text": trace.prefix(min(steps, len(trace.steps))), "steps": trace.steps[:steps]}
    return ProblemTrace(problem=item.problem, trace=type(trace).model_validate(trace.model_dump() | whole))


def search(model: Subject, beams: list[list[ProblemTrace]], scorer: Scorer | None, clock: Clock) -> Run:
    """Score round after round; ``None`` = padded batches."""
    start = clock()
    tokens, scores = 0, []
    for items in beams:
        if scorer is None:
            now = Subject(name=model.name, model=model.model, groups=[items])
            found, read = padded(now, None, model.model.head.weight)
            scores += found
            tokens += read
        else:
            records = scorer.score_traces(items)
            scores += [[score for score in record.scores if score is not None] for record in records]
            tokens += sum(record.usage.verifier_tokens for record in records)
    return Run(scores=scores, tokens=tokens, seconds=clock() - start)


@torch.no_grad()
def measure(subject: Subject, steps: int, repetitions: int, clock: Clock) -> dict[str, list[Run]]:
    """All in turn over all problems."""
    beams = [step for group in subject.groups for step in rounds(group, steps)]
    ways: dict[str, Callable[[], Scorer | None]] = {
        "ours": lambda: IncrementalScorer(subject.model, name="ours"),
        "padded": lambda: None,
        "vs_shared_prefix": lambda: Scorer(subject.model, name="shared"),
    }
    runs: dict[str, list[Run]] = {}
    for repetition in range(repetitions):
        for name, make in ways.items():
            if (scorer := make()) is not None:
                scorer.score_traces(beams[0][:1])  # finds out how the trunk can be read
            if isinstance(scorer, IncrementalScorer):
                scorer.clear()
            run = search(subject, beams, scorer, clock)
            runs.setdefault(name, []).append(run)
            print(
                f"  {subject.name} {repetition + 1}: {name:20} {run.tokens:8} tokens {run.seconds:8.2f} s",
                flush=True,
            )
    gaps = [
        abs(a - b)
        for run in runs.values()
        for row, mine in zip(run[0].scores, runs["ours"][0].scores, strict=True)
        for a, b in zip(row, mine, strict=True)
    ]
    if not gaps:
        raise SystemExit(
            f"{subject.name}: no step was scored; give a larger --max-length or other candidates"
        )
    worst = max(gaps)
    if worst > 1e-3:
        raise SystemExit(f"scores differ by {worst:.2g}: the comparison would be void")
    return runs


def figures(runs: dict[str, list[Run]], suffix: str) -> Figures:
    """Tokens and time against both rivals."""
    mine, found = runs["ours"], []
    for name, rival in runs.items():
        if name == "ours":
            continue
        which = "" if name == "padded" else f"_{name}"
        found.append(times(f"tokens{which}{suffix}", [rival[0].tokens / mine[0].tokens]))
        found.append(compared(f"time{which}{suffix}", [run.seconds for run in mine], rival))
    return found


def main() -> None:
    """Command line."""
    parser = parse(__doc__)
    parser.add_argument("--beams", type=int, default=BEAMS)
    parser.add_argument("--problems", type=int, default=8, help="of the tiny model; the real one has one")
    options = parser.parse_args()
    clock, beams, steps = prepare(options), options.beams, STEPS
    tested = []
    if options.only != "real":
        lab = [group for group in lab_groups(options.problems, beams) if group]
        tested.append(Subject(name="tiny", model=reward_model(TRUNK, 256), groups=lab))
    if options.only != "tiny" and (base := wanted_base(options)):
        has = options.candidates.is_file()
        groups = real_groups(options.candidates, 1, beams, steps) if has else lab_groups(1, beams)
        model = reward_model(base, options.max_length)
        tested.insert(0, Subject(name="real", model=model, groups=groups))
    found: Figures = []
    about: dict[str, object] = {"beams": beams, "steps": steps}
    for subject in tested:
        runs = measure(subject, steps, options.repetitions, clock)
        suffix = "" if subject is tested[0] else f"_{subject.name}"
        found += show(figures(runs, suffix))
        about[subject.name] = {
            "figures": f"with suffix {suffix}" if suffix else "without suffix",
            "problems": len(subject.groups),
            "max_length": subject.model.card.encoding.max_length,
            "steps_per_trace": sum(len(item.trace.steps) for item in subject.items) / len(subject.items),
            "tokens": {name: of[0].tokens for name, of in runs.items()},
            "seconds": {name: round(min(run.seconds for run in of), 3) for name, of in runs.items()},
        }
    write(options, found, **about, clock=options.clock)


if __name__ == "__main__":
    main()
