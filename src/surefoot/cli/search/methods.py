"""One search command for each method; a method's settings are its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.search.command import GuidedSearch, SearchCommand
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo
from surefoot.errors import RunError
from surefoot.search.beam import DVTS, BeamSearch
from surefoot.search.best_of_n_search import BestOfNSearch
from surefoot.search.mcts import MCTS
from surefoot.search.particle import ParticleFilter
from surefoot.search.rebase import Rebase
from surefoot.search.resample import StepResampling
from surefoot.search.revise import Revise

if TYPE_CHECKING:
    from surefoot.protocols import StepScorer

METHOD = OptionGroup(names={"n": "--n -n"}, omit=("name",))


class SearchBestOfN(GuidedSearch):
    """Whole solutions, of which the best-scored one is chosen, or by `--rule weighted_vote` its answer.

    Example: `surefoot search best-of-n --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """

    command: ClassVar[str] = "best-of-n"
    method: Annotated[BestOfNSearch, METHOD] = BestOfNSearch()


class SearchMajority(SearchCommand):
    """Whole solutions, of which one with the most frequent answer is chosen: self-consistency, no scores.

    Example: `surefoot search majority --problems problems.jsonl --n 16 --batch 4 --out results.jsonl`
    """

    command: ClassVar[str] = "majority"
    method: Annotated[BestOfNSearch, OptionGroup(names={"n": "--n -n"}, omit=("name", "rule"))] = (
        BestOfNSearch(rule="majority", name="majority")
    )


class Beam(GuidedSearch):
    """Beam search: draw next steps, keep the best prefixes, continue with them (Snell et al. 2024).

    With `--lookahead` a prefix is scored after that many further greedy steps.

    Example: `surefoot search beam --problems problems.jsonl --prm prm --width 4 --expand 4
    --out results.jsonl --trees trees.jsonl`
    """

    command: ClassVar[str] = "beam"
    method: Annotated[BeamSearch, METHOD] = BeamSearch()


class Dvts(GuidedSearch):
    """DVTS: trees that do not compete, each of which keeps its best step (Beeching et al. 2024).

    Example: `surefoot search dvts --problems problems.jsonl --prm prm --n 16 --expand 4 --out results.jsonl`
    """

    command: ClassVar[str] = "dvts"
    method: Annotated[DVTS, METHOD] = DVTS()


class REBASE(GuidedSearch):
    """REBASE: each round's draws are shared among the open prefixes by their values (Wu et al. 2024).

    Example: `surefoot search rebase --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """

    command: ClassVar[str] = "rebase"
    method: Annotated[
        Rebase, OptionGroup(names={"n": "--n -n", "temperature": "--value-temperature"}, omit=("name",))
    ] = Rebase()


class Particle(GuidedSearch):
    """Particle filter: after each step solutions are drawn anew by their scores (Puri et al. 2025).

    Example: `surefoot search particle --problems problems.jsonl --prm prm --n 16 --out results.jsonl`
    """

    command: ClassVar[str] = "particle"
    method: Annotated[ParticleFilter, METHOD] = ParticleFilter()


class Mcts(GuidedSearch):
    """Monte Carlo tree search: PUCT with the reward model's scores as values (OpenR, Wang et al. 2024).

    Example: `surefoot search mcts --problems problems.jsonl --prm prm --paths 16 --out results.jsonl`
    """

    command: ClassVar[str] = "mcts"
    method: Annotated[MCTS, METHOD] = MCTS()


class SearchResample(GuidedSearch):
    """Accept a step or draw it again, while its score is too low (after Liao et al. 2025).

    Example: `surefoot search resample --problems problems.jsonl --prm prm --retries 3 --out results.jsonl`
    """

    command: ClassVar[str] = "resample"
    method: Annotated[StepResampling, METHOD] = StepResampling()


class ReviseJudge(o.JudgeSettings):
    """Who says which step is wrong, and how scores become one number."""

    aggregate: o.Aggregate = None


class SearchRevise(SearchCommand):
    """Write a solution again, told which step is wrong and why, while a verifier or reward model finds one.

    A verifier gives its reason: the line that does not hold, or the visible test that fails. A reward model
    says that the step is wrong. With `--keep` the steps before it stay.

    Example: `surefoot search revise --problems problems.jsonl --verifier visible-tests --segment python
    --base-url http://localhost:8000/v1 --chat --out results.jsonl`
    """

    command: ClassVar[str] = "revise"
    method: Annotated[Revise, METHOD] = Revise()
    judge: Annotated[ReviseJudge, OptionGroup(title="Verifier or reward model")] = ReviseJudge()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.judge.names or self.judge.verifier):
            raise ValueError("give --verifier or --prm: who says which step is wrong")
        return self

    @property
    def reward(self) -> ReviseJudge:
        """Who judges."""
        return self.judge

    @contextmanager
    def scorer(self) -> Iterator[StepScorer | None]:
        """Who judges, opened. Raises ``RunError`` for a verifier that tells what policies may not see."""
        with self.judge.open(self.loading) as scorer:
            for one in getattr(getattr(scorer, "labeller", None), "verifiers", ()):
                if getattr(one, "visibility", "visible") == "hidden":
                    raise RunError(
                        f"--verifier {one.name}: its reasons tell of hidden tests; use visible-tests"
                    )
            yield scorer


class Draw(Command):
    """Draw the tree of one problem, as text or SVG, with its values and the solution that was chosen.

    Example: `surefoot search draw trees.jsonl --out tree.svg`
    """

    trees: Annotated[str, Flag(argument=True)] = Field(
        description="File of trees, as `--trees` writes them; `-` is standard input."
    )
    problem: str | None = Field(
        default=None, description="Id of the problem; by default the first of the file."
    )
    out: Annotated[str, Flag(short="-o", output=True)] = Field(
        default="-", description="File to write: `.svg`, `.txt`, or `-` for text on standard output."
    )
    width: int = Field(default=110, ge=40, description="Columns of the text.")
    box: int = Field(default=220, ge=60, description="Width of a step in the SVG, in pixels.")

    def run(self) -> None:
        """Read the trees, draw one."""
        from surefoot.cli.runs import read_table
        from surefoot.errors import RecordError
        from surefoot.search.drawing import draw_svg, draw_text
        from surefoot.search.saved_tree import SavedTree

        if self.out != "-" and Path(self.out).suffix not in (".svg", ".txt"):
            raise RecordError(
                f"--out {self.out}: unknown ending; choose .svg or .txt, or - for text on standard output"
            )
        saved = read_table(self.trees, SavedTree)
        tree = next((tree for tree in saved if self.problem in (None, tree.problem_id)), None)
        if tree is None:
            known = ", ".join(tree.problem_id for tree in saved[:5])
            raise RecordError(
                f"--problem {self.problem}: {self.trees} has no such tree; it has {len(saved)}, such as "
                f"{known}"
            )
        if self.problem is None and len(saved) > 1:
            echo(f"the first of {len(saved)} trees; --problem names another", err=True)
        drawing = (
            draw_svg(tree, box=self.box) if self.out.endswith(".svg") else draw_text(tree, width=self.width)
        )
        if self.out == "-":
            sys.stdout.buffer.write(drawing.encode("utf-8"))
            sys.stdout.flush()
        else:
            Path(self.out).write_bytes(drawing.encode("utf-8"))
