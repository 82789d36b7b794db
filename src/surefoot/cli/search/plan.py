"""Searches as words (``beam:width=8,expand=2``), and the plan that names one for each difficulty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.cli import options as o
from surefoot.cli.search.command import GuidedSearch, SearchSettings, StepPRMSettings, parse_size
from surefoot.cli.settings import Flag, OptionGroup
from surefoot.cli.terminal import echo, echo_table
from surefoot.errors import RunError
from surefoot.search import SEARCHES, ComputeOptimal, OptimalFit, Probe, Search, Trial
from surefoot.search.method import SearchMethod
from surefoot.search.optimal import Measure
from surefoot.search.selection import Rule

if TYPE_CHECKING:
    from surefoot.records import Problem


class Cell(BaseModel):
    """How a search did on the development problems of one bin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accuracy: float | None
    """``None`` = no outcome is known."""
    tokens: float
    """With those of the probe."""
    problems: int


class SearchPlan(BaseModel):
    """Which search for which predicted difficulty, as a file; see ``ComputeOptimal``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edges: tuple[float, ...]
    searches: tuple[str, ...]
    """One a bin, from the easiest; written as :func:`search_of` reads them."""
    probe: int = 4
    measure: Measure = "score"
    rule: Rule = "weighted_vote"
    bins: tuple[Mapping[str, Cell], ...] = ()
    """What the choice rests on; not needed to search."""
    unknown: int = 0
    """Development problems whose difficulty could not be told."""

    @classmethod
    def of(cls, fit: OptimalFit) -> SearchPlan:
        """A fitted choice, whose searches are named by their words."""
        return cls(
            edges=fit.search.edges,
            searches=tuple(search.name for search in fit.search.searches),
            probe=fit.search.probe.n,
            measure=fit.search.probe.measure,
            rule=fit.search.rule,
            bins=tuple(
                {
                    name: Cell(
                        accuracy=showing.accuracy if showing.problems else None,
                        tokens=showing.tokens,
                        problems=showing.problems,
                    )
                    for name, showing in row.items()
                }
                for row in fit.bins
            ),
            unknown=fit.unknown,
        )

    def search(self) -> ComputeOptimal:
        """The search that follows the plan. Raises ``RunError`` for words, ``ValueError`` for numbers."""
        return ComputeOptimal(
            edges=self.edges,
            searches=tuple(search_of(words) for words in self.searches),
            probe=Probe(n=self.probe, measure=self.measure),
            rule=self.rule,
        )


def read_plan(path: str) -> SearchPlan:
    """A plan from its JSON file. Raises ``RunError`` for a file that is none."""
    return o.settings_file("--plan", path, SearchPlan)


def search_of(words: str) -> Search:
    """A search from ``METHOD`` or ``METHOD:setting=value,…``; the words are its name.

    Raises ``RunError`` for an unknown method or setting, or a value that makes no search.
    """
    name, _, rest = words.partition(":")
    kinds = {key.replace("_", "-"): kind for key, kind in SEARCHES.items() if kind is not ComputeOptimal}
    kind = kinds.get(name.replace("_", "-"))
    if kind is None:
        raise RunError(f"{words!r}: there is no search {name!r}; choose from {', '.join(kinds)}")
    settings = dict(part.partition("=")[::2] for part in rest.split(",")) if rest else {}
    own = [setting for setting in kind.model_fields if setting not in SearchMethod.model_fields]
    known = [*own, "rule"]
    for setting in settings:
        if setting not in known:
            raise RunError(f"{words!r}: {name} has no setting {setting!r}; choose from {', '.join(known)}")
    try:
        search: Search = kind.model_validate({**settings, "name": words})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise RunError(f"{words!r}: {where + ': ' if where else ''}{said}") from error
    return search


class Optimal(GuidedSearch):
    """Compute-optimal search: a few solutions predict how hard a problem is, and so how to search it.

    Example: `surefoot search optimal --plan plan.json --problems problems.jsonl --prm prm --out r.jsonl`
    """

    command: ClassVar[str] = "optimal"
    plan: Annotated[str, o.INPUT] = Field(description="JSON file of `surefoot search plan`, or your own.")

    def search(self) -> ComputeOptimal:
        """The search that follows the plan."""
        from surefoot.cli.runs import checked_options

        with checked_options():
            return read_plan(self.plan).search()


class FindPlan(SearchSettings):
    """Find the best search for each bin of predicted difficulty, from results on development problems.

    Each trial is a search and the file of its results, made by `surefoot search METHOD` with these settings.

    Example: `surefoot search plan best-of-n:n=16@bon.jsonl beam:width=4@beam.jsonl --tokens 2000
    --problems dev.jsonl --prm prm --out plan.json`
    """

    trials: Annotated[tuple[str, ...], Flag(argument=True, metavar="METHOD:SETTING=VALUE,…@FILE")] = Field(
        description="A search, and the file of its results on these problems."
    )
    prm: Annotated[StepPRMSettings, OptionGroup(title="Reward model")]
    tokens: float = Field(
        ge=1, description="Most tokens per problem, of policy and verifier, with the probe."
    )
    out: Annotated[str, Flag(short="-o", output=True)] = Field(
        default="plan.json", description="JSON file to write."
    )
    bins: int = Field(default=5, ge=1, description="Bins of difficulty, equally full.")
    slack: float = Field(default=0.1, ge=0, description="Share by which a search may exceed `--tokens`.")
    probe: Annotated[Probe, OptionGroup(names={"n": "--probe"})] = Probe()
    rule: Rule = Field(default="weighted_vote", description="How the solution that is returned is chosen.")

    def run(self) -> None:
        """Predict difficulties, choose, write and show."""
        import asyncio

        from surefoot.cli.runs import checked_options, read_table
        from surefoot.cli.search.caches import remembering_policy, remembering_scorer
        from surefoot.io import write_json
        from surefoot.records import Problem
        from surefoot.search import fit_optimal, predict_difficulties

        memory = parse_size(self.remember)
        problems = read_table(self.problems, Problem)
        trials = _trials(self.trials, problems)
        scorer = self.prm.open(self.loading)
        with self.grading.open() as grader:
            probed = asyncio.run(
                predict_difficulties(
                    self.probe,
                    problems,
                    remembering_policy(self.policy.open(chat=self.prompt.chat, loading=self.loading), memory),
                    remembering_scorer(scorer, memory),
                    steps=self.how(scorer),
                    aggregation=self.prm.aggregate,
                    grader=grader,
                    seed=self.seed,
                    overlap=bool(self.policy.base_url),
                    concurrency=self.in_flight,
                )
            )
        with checked_options():
            fit = fit_optimal(
                trials,
                probed,
                tokens=self.tokens,
                bins=self.bins,
                slack=self.slack,
                probe=self.probe,
                rule=self.rule,
            )
        plan = SearchPlan.of(fit)
        write_json(Path(self.out), plan.model_dump(mode="json"))
        _show(plan)


def _trials(words: Sequence[str], problems: Sequence[Problem]) -> list[Trial]:
    from surefoot.cli.runs import read_table
    from surefoot.search import SearchResult

    trials = []
    for trial in words:
        search, at, path = trial.partition("@")
        if not at or not path:
            raise RunError(
                f"{trial!r}: give a search and the file of its results, as beam:width=4@beam.jsonl"
            )
        results = {result.problem_id: result for result in read_table(path, SearchResult)}
        missing = [problem.id for problem in problems if problem.id not in results]
        if missing:
            raise RunError(
                f"{path}: {len(missing)} of {len(problems)} problems have no result, first {missing[0]}"
            )
        of_search = [results[problem.id] for problem in problems]
        trials.append(Trial(search=search_of(search), results=of_search))
    return trials


def _show(plan: SearchPlan) -> None:
    """Accuracy and tokens of each search in each bin; the chosen one is marked."""
    rows = []
    for row, chosen, edge in zip(plan.bins, plan.searches, [*plan.edges, None], strict=True):
        cells = [
            ("n/a" if cell.accuracy is None else f"{100 * cell.accuracy:.1f}")
            + f" at {cell.tokens:.0f}"
            + (" *" if name == chosen else "")
            for name, cell in row.items()
        ]
        most = max(cell.problems for cell in row.values())
        rows.append(["" if edge is None else f"{edge:.3f}", str(most), *cells])
    echo_table(
        "correct, %, and tokens per problem with the probe; * = chosen",
        ["difficulty below", "problems", *plan.bins[0]],
        rows,
    )
    if plan.unknown:
        echo(f"left out: {plan.unknown} problems whose difficulty is not known", err=True)
