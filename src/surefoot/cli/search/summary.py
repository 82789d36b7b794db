"""What a search of many problems came to: how often it is right, and what that cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.cli.terminal import echo, echo_table

if TYPE_CHECKING:
    from surefoot.search.method import SearchResult


class SearchSummary:
    """Adds results up and shows them as a table on standard error."""

    def __init__(self) -> None:
        from surefoot.records import Usage

        self._outcomes: list[float] = []
        self._found: list[float] = []
        """Whether any candidate is right, of problems whose answer is known."""
        self._problems = self._candidates = self._without = 0
        self._usage = Usage()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add(self, results: Iterable[SearchResult]) -> None:
        """Count these too."""
        for result in results:
            self._problems += 1
            self._candidates += len(result.candidates)
            self._without += result.chosen is None
            self._usage += result.usage
            self._counts.update(result.counts.model_dump())
            if result.error:
                self._errors[result.error] += 1
            if result.outcome is not None:
                self._outcomes.append(float(result.outcome))
                self._found.append(float(any(trace.outcome for trace in result.candidates)))

    def add_file(self, path: Path) -> None:
        """Count the results of a file."""
        from surefoot.io import read_records
        from surefoot.search.method import SearchResult

        self.add(read_records(path, SearchResult))

    def show(self, title: str) -> None:
        """Print the table."""
        title = f"{title}: {self._problems} problems"
        echo_table(title, ("", ""), self._rows(), err=True, show_headings=False)
        for error, count in self._errors.most_common(5):
            echo(f"{count} problems with: {error}", err=True)
        if len(self._errors) > 5:
            echo(f"{len(self._errors) - 5} other errors, see 'error' in the results", err=True)

    def _rows(self) -> list[tuple[str, str]]:
        each = 1 / max(1, self._problems)
        usage, counts = self._usage, self._counts
        rows = [
            ("chosen answer is correct", _share(self._outcomes)),
            ("a candidate is correct (pass@ candidates)", _share(self._found)),
        ]
        if unjudged := self._problems - len(self._outcomes):
            rows.append(("problems whose outcome is not known", str(unjudged)))
        return [
            *rows,
            ("problems without a solution", str(self._without)),
            ("candidates a problem", f"{self._candidates * each:.1f}"),
            ("tokens a problem", f"{usage.tokens * each:.0f}"),
            ("  read by the policy", f"{usage.prompt_tokens * each:.0f}"),
            ("  written by the policy", f"{usage.completion_tokens * each:.0f}"),
            ("  read or written by the verifier", f"{usage.verifier_tokens * each:.0f}"),
            ("steps drawn", str(counts["drawn"])),
            ("  merged with equal ones", str(counts["merged"])),
            ("  capped", str(counts["capped"])),
            ("prefixes without a score", str(counts["unscored"])),
            ("requests that failed", str(counts["failed"])),
        ]


def _share(outcomes: list[float]) -> str:
    """With its 95 % interval over problems."""
    import numpy as np

    from surefoot.stats.bootstrap import bootstrap_mean

    if not outcomes:
        return "no answers known"
    return format(bootstrap_mean(outcomes, rng=np.random.default_rng(0)), ".1%")
