"""``surefoot evaluate best-of-n``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.answers import AnswerChecker, AnswerStyle
    from surefoot.evaluation.best_of_n import BestOfNResult
    from surefoot.evaluation.pools import StoredPools
    from surefoot.records import Problem, StepScores, Trace

Progress = Callable[[str, int, int], None]


def best_of_n(
    out: Annotated[
        str, typer.Option("--out", "-o", help="Directory for best_of_n.json, best_of_n.html and scores.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="NAME=CHECKPOINT, or NAME=FILE of step scores; not needed with --pool."),
    ] = None,
    traces: Annotated[
        str | None, typer.Option("--traces", help="File of trace records, with answers and outcomes.")
    ] = None,
    problems: Annotated[
        str | None, typer.Option("--problems", help="File of problem records; needed for a checkpoint.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool", help="File of stored candidates with stored scores, in place of --traces; graded here."
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", help="Numbers of samples, e.g. 1,2,4,8; by default 1, 2, 4 … as far as half go."
        ),
    ] = None,
    extract: o.Extract = "boxed,hash,phrase,last_number",
    equality: o.Equality = "math",
    device: o.Device = "cpu",
    draws: Annotated[
        int, typer.Option("--draws", min=1, help="Random subsets for votes, which have no closed form.")
    ] = 400,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", min=1, help="Bootstrap draws of problems for the intervals.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of subsets and bootstrap.")] = 0,
) -> None:
    """Choose among N samples: every selector beside pass@N and majority, against N and against tokens.

    Best-of-N and the weighted vote by min, product, last and mean, for any number of scorers on the same
    samples, with 95 % intervals over problems and differences from majority paired by problem. Tables are
    printed; DIR/best_of_n.json has every number and DIR/best_of_n.html the curves. Scores of checkpoints
    are kept in DIR/scores and used again.

    Example: `surefoot evaluate best-of-n prm=runs/prm orm=orm.jsonl --problems problems.jsonl --traces
    traces.jsonl --out curves`

    Example: `surefoot evaluate best-of-n --pool pool.jsonl.gz --extract boxed --out curves`
    """
    from dataclasses import replace

    from surefoot.cli._shared import checker, read_all, stages
    from surefoot.cli.evaluate._sources import named
    from surefoot.errors import ScoreError
    from surefoot.evaluation.best_of_n import evaluate_best_of_n
    from surefoot.evaluation.best_of_n_report import write_best_of_n_report
    from surefoot.evaluation.pools import judged_candidates
    from surefoot.io import write_json
    from surefoot.records import Problem, Trace

    wanted = _numbers(sizes) if sizes else None
    files = named(sources or [])
    if (traces is None) == (pool is None):
        raise ScoreError("give either --traces or --pool")
    if not files and pool is None:
        raise ScoreError("give a scorer as NAME=CHECKPOINT or NAME=FILE, or stored scores with --pool")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with checker(equality) as comparing, stages() as progress:
        stored = _stored(pool, comparing, extract, progress) if pool else None
        samples = stored.traces if stored else read_all(traces or "-", Trace)
        asked = stored.problems if stored else read_all(problems, Problem) if problems else None
        scores = _by_scorer(None, stored.scores) if stored else {}
        scores |= _scores(files, asked, samples, folder, device, progress)
        total = len({trace.problem_id for trace in samples})
        candidates = judged_candidates(
            samples,
            comparing,
            least=max(wanted) if wanted else None,
            progress=lambda done: progress("compare answers", done, total),
        )
        failures = dict(comparing.failures)
    if stored:
        candidates = replace(candidates, dropped={**stored.dropped, **candidates.dropped})
    result = evaluate_best_of_n(candidates, scores, sizes=wanted, draws=draws, bootstrap=bootstrap, seed=seed)
    inputs = {"sources": files, "traces": traces, "problems": problems, "pool": pool}
    inputs |= {"extract": extract if pool else None, "equality": equality}
    verdicts = {"stated": stored.verdicts, "differing": stored.differing} if stored else None
    data = {"inputs": inputs, "answers_not_compared": failures, "verdicts_of_the_file": verdicts}
    write_json(folder / "best_of_n.json", {**data, **result.to_json()})
    write_best_of_n_report(result, folder / "best_of_n.html")
    _print(result, stored)


def _numbers(text: str) -> list[int]:
    from surefoot.errors import ScoreError

    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ScoreError(f"--sizes {text!r}: give numbers of 1 or more, such as 1,2,4,8")
    return found


def _stored(pool: str, comparing: AnswerChecker, extract: str, progress: Progress) -> StoredPools:
    from surefoot.evaluation.pools import grade_stored
    from surefoot.formats.candidate_pool import read_candidate_pool
    from surefoot.io import ReadReport

    report = ReadReport()
    pools = list(read_candidate_pool(pool, report=report))
    if report.bad_count:
        typer.echo(report.summary(), err=True)
    styles = cast("tuple[AnswerStyle, ...]", tuple(extract.split(",")))
    return grade_stored(pools, comparing, styles, progress=lambda done: progress("grade", done, len(pools)))


def _scores(
    files: Mapping[str, str],
    problems: Sequence[Problem] | None,
    traces: Sequence[Trace],
    folder: Path,
    device: str,
    progress: Progress,
) -> dict[str, list[StepScores]]:
    """Records by scorer; a checkpoint scores the traces that have steps, unless that was done before."""
    from surefoot.cli._shared import pair, read_all
    from surefoot.errors import ScoreError
    from surefoot.evaluation.step_scores import score_once
    from surefoot.records import StepScores

    found: dict[str, list[StepScores]] = {}
    for name, path in files.items():
        if Path(path).is_file():
            found |= _by_scorer(name, read_all(path, StepScores))
            continue
        if problems is None:
            raise ScoreError(f"{name}={path} is no file; a checkpoint needs --problems to score the traces")
        items = pair(list(problems), list(traces))
        found[name] = score_once(name, path, items, folder / "scores", device=device, progress=progress)
    return found


def _by_scorer(name: str | None, records: Sequence[StepScores]) -> dict[str, list[StepScores]]:
    """Under ``name``, or ``name/scorer`` each if there are several; without ``name`` by the scorer's own."""
    groups: dict[str, list[StepScores]] = {}
    for record in records:
        groups.setdefault(record.scorer, []).append(record)
    if name is None:
        return groups
    if len(groups) == 1:
        return {name: list(records)}
    return {f"{name}/{scorer}": rows for scorer, rows in groups.items()}


def _print(result: BestOfNResult, stored: StoredPools | None) -> None:
    """Accuracy, differences and findings on standard output; what was left out on standard error."""
    from surefoot.cli.evaluate._sources import show
    from surefoot.evaluation.best_of_n_report import best_of_n_findings

    heads = ("selector", *(f"N={size}" for size in result.sizes))
    show(
        f"{result.problems} problems, {result.traces} samples: share answered correctly with 95 % interval",
        heads,
        [[curve.name, *curve.accuracy.values()] for curve in result.curves],
    )
    show(
        "Difference from majority in points, paired by problem",
        heads,
        [
            [curve.name, *(100 * gap for gap in curve.minus_majority.values())]
            for curve in result.curves
            if curve.minus_majority
        ],
        spec="+.1f",
    )
    known = [curve for curve in result.curves if curve.tokens]
    if known:
        show(
            "Mean tokens a problem, policy and verifier",
            heads,
            [[c.name, *(f"{tokens:.0f}" for tokens in c.tokens.values())] for c in known],
        )
    for sentence in best_of_n_findings(result):
        typer.echo(sentence)
    for reason, count in result.dropped.items():
        typer.echo(f"left out: {count} {reason}", err=True)
    for what, reason in result.unknown.items():
        typer.echo(f"unknown: {what}; {reason}", err=True)
    for name, counts in result.scorers.items():
        if counts.unscored or counts.foreign:
            typer.echo(
                f"{name}: {counts.unscored} candidates unscored, {counts.foreign} scores of other traces",
                err=True,
            )
    if stored and stored.differing:
        typer.echo(
            f"{stored.differing} of {stored.verdicts} stated verdicts differ from the grading here", err=True
        )
