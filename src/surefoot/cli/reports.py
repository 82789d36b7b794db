"""Shared parts of the commands that write a report: settings, sources, JSON file and page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import PrivateAttr, field_validator

from surefoot.cli import options as o
from surefoot.cli.runs import origin_of, print_report, trained_on
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo, note
from surefoot.errors import LabelError
from surefoot.evaluation.report import JudgedTrace, Report, Section, first_screen_of, to_json, worked_examples
from surefoot.io import write_json
from surefoot.io.sources import names_files
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem

_IN_JSON = ("sentence", "verdicts", "ranking", "claims", "scorers", "rivals", "advice", "limits")
"""Parts of the first screen in the JSON file."""
_ENDINGS = (".jsonl.gz", ".json.gz", ".jsonl", ".json", ".parquet")


class ReportCommand(Command):
    """Settings of the commands that write a JSON file and a page."""

    out: o.OutDirectory
    """Directory for the JSON file with every number, the HTML report, and the scores of checkpoints, which
    are reused, so that a killed run resumes."""
    draws: o.Draws = 1000
    seed: o.Seed = 0
    tables: Annotated[bool, Flag(transient=True)] = False
    """Also print the tables of the report."""
    _limits: list[str] = PrivateAttr(default_factory=list)
    """Limits of the whole report, shown before the limits of each section."""

    @field_validator("sources", "scorers", check_fields=False)
    @classmethod
    def _name_all(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name}={path}" for name, path in named(value).items())

    @property
    def report_name(self) -> str:
        """Name of the report's files."""
        return self.path().split()[-1]

    def outputs(self) -> list[Path]:
        """The report's files first; the directory may also hold other reports and stored scores."""
        return [self.out / f"{self.report_name}.{ending}" for ending in ("json", "html")]

    def check_training(self, sources: Mapping[str, str], problems: Iterable[Problem]) -> None:
        """Warn, also in the report, about checkpoints that were trained on some of the problems."""
        models = [path for path in sources.values() if not names_files(path)]
        for warning in trained_on(models, problems) if models else ():
            note(warning)
            self._limits.append(f"{warning}.")

    def inputs(self) -> dict[str, Any]:
        """The settings as the report states them."""
        return self.model_dump(mode="json", exclude={"tables"})

    def folder(self) -> Path:
        """The directory ``out``; created if it is missing."""
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out

    def write(self, *sections: Section, judged: Iterable[JudgedTrace] = (), **also: Any) -> None:
        """Write the results as a JSON file, with the settings and ``also``, and as a page.

        The first screen is printed; sections without examples get some of ``judged``, with their images.
        """
        self.folder()
        for_json, for_html = self.outputs()[:2]
        inputs = self.inputs()
        if self._limits:
            sections = (replace(sections[0], limits=[*self._limits, *sections[0].limits]), *sections[1:])
        examples = [example for section in sections for example in section.examples]
        right: dict[str, bool] = {}
        traces = inputs.get("traces")
        chosen = worked_examples(_noted(judged, right), Path(traces).parent if traces else None)
        first = first_screen_of(sections, origin_of(self, for_json.name), examples or chosen)
        screen = {name: getattr(first, name) for name in _IN_JSON}
        data = {"inputs": inputs, "first_screen": to_json(screen), **also}
        data |= {"right_by_example": right, "examples": to_json(first.examples)}
        titles = dict.fromkeys(section.title for section in sections)
        report = Report(f"{for_json.stem}: {', '.join(titles)}", first)
        for section in sections:
            data |= to_json(section.results)
            report.section(section)
        write_json(for_json, data)
        report.write(for_html)
        print_report(first, report.printed if self.tables else ())
        echo(f"{for_html}")


def _noted(judged: Iterable[JudgedTrace], right: dict[str, bool]) -> Iterator[JudgedTrace]:
    """The traces as they are; ``right`` gets whether the first error of each was found."""
    for item in judged:
        if item.predicted is not None and item.error >= 0:
            right[item.item.trace.id] = item.predicted == item.error
        yield item


def named(sources: Sequence[str]) -> dict[str, str]:
    """Name → path of arguments like ``NAME=PATH`` or ``PATH``, whose stem is then the name.

    Raises ``LabelError`` for a repeated name.
    """
    paths: dict[str, str] = {}
    for source in sources:
        name, equals, path = source.partition("=")
        if not equals:
            path, name = source, Path(source).name
            name = next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)
        if not name or not path:
            raise LabelError(f"{source!r}: give NAME=FILE, or FILE alone")
        if name in paths:
            raise LabelError(f"two sources are called {name!r}; give NAME=FILE to distinguish them")
        paths[name] = path
    return paths


def unlabelled(items: Iterable[LabelledTrace | ProblemTrace]) -> list[ProblemTrace]:
    """Traces without their labels."""
    return [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
