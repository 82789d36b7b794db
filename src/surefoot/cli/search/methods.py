"""The search commands, made from the settings of the search methods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field, create_model

from surefoot.cli.runs import read_table
from surefoot.cli.search.command import GuidedSearch, SearchCommand
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import note
from surefoot.errors import RecordError, RunError
from surefoot.protocols import StepScorer
from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.mcts import MCTS
from surefoot.search.method import SearchMethod
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise

METHOD = OptionGroup(names={"n": "--n -n"}, omit=("name",))


def guided(name: str, method: type[SearchMethod], about: str, **options: str) -> type[GuidedSearch]:
    """The command ``name`` of a method that a reward model guides; the fields of ``method`` become options.

    ``options`` renames options, as ``temperature="--value-temperature"``.
    """
    group = OptionGroup(names={"n": "--n -n", **options}, omit=("name",))
    example = (
        f"surefoot search {method().name.replace('_', '-')} problems.jsonl --prm prm --out results.jsonl"
    )
    return create_model(
        name,
        __base__=GuidedSearch,
        __module__=__name__,
        __doc__=f"{about}\n\nExample: `{example}`",
        method=(Annotated[method, group], method()),  # type: ignore[arg-type]
    )


BestOfN = guided(
    "BestOfN",
    BestOfNSearch,
    "Sample whole solutions and choose the one with the best score, or vote with `--rule weighted_vote`.",
)
Beam = guided(
    "Beam",
    BeamSearch,
    "Beam search: sample next steps, keep the best prefixes, continue with them (Snell et al. 2024).\n\n"
    "With `--lookahead` a prefix is scored after that many further greedy steps.",
)
Dvts = guided(
    "Dvts",
    DVTS,
    "Diverse verifier tree search: independent trees, each keeps its best step (Beeching et al. 2024).",
)
REBASE = guided(
    "REBASE",
    Rebase,
    "REBASE: share the samples of each round among the open prefixes by value (Wu et al. 2024).",
    temperature="--value-temperature",
)
Particle = guided(
    "Particle",
    ParticleFilter,
    "Particle filter: resample solutions by score after each step (Puri et al. 2025).",
)
Mcts = guided(
    "Mcts", MCTS, "Monte Carlo tree search: PUCT with step scores as values (OpenR, Wang et al. 2024)."
)
Resample = guided(
    "Resample",
    StepResampling,
    "Accept a step, or sample it again while its score is too low (after Liao et al. 2025).",
)


class SearchMajority(SearchCommand):
    """Self-consistency: sample whole solutions and choose the most frequent answer, without scores.

    Example: `surefoot search majority problems.jsonl --policy lab --n 16 --batch 4 --out results.jsonl`
    """

    method: Annotated[BestOfNSearch, OptionGroup(names={"n": "--n -n"}, omit=("name", "rule"))] = (
        BestOfNSearch(rule="majority", name="majority")
    )


class SearchRevise(GuidedSearch):
    """Revise solutions: name the first wrong step and ask the policy to write the solution again.

    A verifier gives its reason: the equation that does not hold, or the visible test that fails. A reward
    model gives the step alone. `--keep` keeps the steps before it.

    Example: `surefoot search revise problems.jsonl --verifier visible-tests --segment python
    --base-url http://localhost:8000/v1 --chat --out results.jsonl`
    """

    method: Annotated[Revise, METHOD] = Revise()

    @contextmanager
    def scorer(self) -> Iterator[StepScorer | None]:
        """Open the judge. Raises ``RunError`` for a verifier that reveals hidden tests."""
        with super().scorer() as scorer:
            for verifier in getattr(getattr(scorer, "labeller", None), "verifiers", ()):
                if getattr(verifier, "visibility", "visible") == "hidden":
                    raise RunError(
                        f"--verifier {verifier.name}: its reasons reveal hidden tests; use visible-tests"
                    )
            yield scorer


class Draw(Command):
    """Print the tree of one problem as text, with the values of its steps and the chosen solution.

    Example: `surefoot search draw trees.jsonl --problem p17`
    """

    trees: Annotated[str, Flag(argument=True)]
    """File of trees, as `--trees` writes them; `-` is standard input."""
    problem: str | None = Field(default=None, description="Problem id; default: the first of the file.")
    width: int = Field(default=110, ge=40, description="Columns of the text.")

    def run(self) -> None:
        """Print the tree. Raises ``RecordError`` if the file has no such problem."""
        from surefoot.search.saved_tree import SavedTree, draw_text

        trees = read_table(self.trees, SavedTree)
        tree = next((tree for tree in trees if self.problem in (None, tree.problem_id)), None)
        if tree is None:
            examples = ", ".join(tree.problem_id for tree in trees[:5])
            raise RecordError(
                f"--problem {self.problem}: {self.trees} has no such tree; it has {len(trees)}, such as "
                f"{examples}"
            )
        if self.problem is None and len(trees) > 1:
            note(f"the first of {len(trees)} trees; --problem names another")
        sys.stdout.buffer.write(draw_text(tree, width=self.width).encode("utf-8"))
        sys.stdout.flush()
