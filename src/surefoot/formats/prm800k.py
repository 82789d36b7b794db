"""PRM800K (Lightman et al., arXiv 2305.20050), as published and as step rows.

Published is one record per labelling session; each step offers completions, one of which (or the labeller's
own) was chosen and continued. A step row has one rated response and the prefix that it continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required

from pydantic import AfterValidator, ConfigDict, Field, WrapValidator, with_config
from typing_extensions import TypedDict

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, Finite, TraceBuilder, expand_rows, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, content_id

_ANSWER_MARK = "# Answer"


def _check_rating(rating: float) -> float:
    if rating not in (-1.0, 0.0, 1.0):
        raise ValueError(f"a rating is -1, 0, 1 or null, not {rating}")
    return rating


Rating = Annotated[float, AfterValidator(_check_rating)]


@with_config(ConfigDict(strict=True, allow_inf_nan=False))
class _Fields(TypedDict, total=False, extra_items=Finite):  # type: ignore[call-arg]  # mypy lacks PEP 728
    """Base of the rows. They are plain dicts, not models, because a file has millions of completions."""


class _Completion(_Fields, total=False):
    text: Required[str]
    rating: Rating | None
    flagged: bool | None


_HumanCompletion = Annotated[
    _Completion, WrapValidator(lambda data, handler: data if isinstance(data, str) else handler(data))
]
"""Some exports have the labeller's step as plain text."""


class _SessionStep(_Fields, total=False):
    completions: list[_Completion] | None
    human_completion: _HumanCompletion | None
    chosen_completion: int | None


class _SessionLabel(_Fields, total=False):
    steps: Required[list[_SessionStep]]
    total_time: int | float | None
    finish_reason: str | None


class _SessionQuestion(_Fields, total=False):
    problem: Required[str]
    ground_truth_solution: str | None
    ground_truth_answer: str | None
    pre_generated_steps: list[str] | None
    pre_generated_answer: str | None
    pre_generated_verifier_score: float | None


class _SessionRow(_Fields, total=False):
    labeler: Required[str]
    timestamp: Required[str]
    generation: int | None
    is_quality_control_question: bool | None
    is_initial_screening_question: bool | None
    question: Required[_SessionQuestion]
    label: Required[_SessionLabel]


def read_prm800k(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Traces of each record: first the main path, then each alternative completion as a trace.

    The main path follows the chosen (or the labeller's own) completions. If the last step has neither, as
    when the labeller stopped at the first error, it ends with the pre-generated step if that was rated, else
    with the first completion rated −1. An alternative is the chosen prefix and that completion, labelled on
    that last step only, so that every rating is one label and no prefix is invented. Neutral stays 0.

    ``evidence.rater`` is the labeller, ``created`` the timestamp (read as UTC), ``finish_reason`` the
    session's, ``trace.answer`` the text after ``# Answer`` in the last step. ``meta`` holds ``branch``
    (``main`` or ``alternative``), the record's flags, and ``rows``: the flags of each label's completion.
    Steps are joined by line breaks.
    """
    return expand_rows(path, _SessionRow, lambda _, record: _traces(record), report)


class _Rated(NamedTuple):
    """A completion, or the labeller's own, with its place."""

    step: int
    rating: float | None
    """-1, 0, 1, or ``None`` for not rated; validated with its row."""
    row: dict[str, Any]
    """Fields of the source row without a place in a label; kept in ``trace.meta["rows"]``."""
    text: str = ""
    number: int = 0
    """Among the completions of the step; the labeller's own comes last."""


def _traces(record: _SessionRow) -> Iterator[LabelledTrace]:
    question, label = record["question"], record["label"]
    solution = question.get("ground_truth_solution")
    problem = Problem(
        text=question["problem"],
        answer=question.get("ground_truth_answer"),
        source="prm800k",
        meta={} if solution is None else {"solution": solution},
    )
    steps, rater, timestamp = label["steps"], record["labeler"], record["timestamp"]
    path, alternatives = _walk(steps, question.get("pre_generated_steps") or [])
    if not path and not alternatives:
        raise RecordError(
            f"field 'label.steps': no completion (finish_reason {label.get('finish_reason')!r})"
        )
    builder = TraceBuilder("\n", _time(timestamp))
    meta, texts = _meta(record), [offer.text for offer in path]

    def trace(offers: list[_Rated], branch: str, place: list[int] | None) -> LabelledTrace:
        last = offers[-1]
        _, mark, answer = last.text.rpartition(_ANSWER_MARK)
        return _path_trace(
            builder,
            problem,
            [*texts[: last.step], last.text],
            offers,
            branch=branch,
            identity=(rater, timestamp, problem.id, place),
            rater=rater,
            answer=answer.strip() or None if mark else None,
            finish_reason=label.get("finish_reason"),
            meta=meta,
        )

    if path:
        yield trace(path, "main", None)
    for offer in alternatives:
        yield trace([offer], "alternative", [offer.step, offer.number])


def _walk(steps: list[_SessionStep], pre_generated: list[str]) -> tuple[list[_Rated], list[_Rated]]:
    """The main path, and all completions that branch off it."""
    path: list[_Rated] = []
    alternatives: list[_Rated] = []
    for index, step in enumerate(steps):
        offers = _offers(index, step)
        if offers and len(path) < index:
            raise RecordError(
                f"field 'label.steps.{index - 1}': nothing was chosen, but another step follows"
            )
        chosen = _chosen(step, index, offers, pre_generated)
        if chosen is not None:
            row = offers[chosen].row
            is_preferred = row["is_human_response"] or step.get("chosen_completion") is not None
            path.append(offers[chosen]._replace(row=row | {"is_preferred_response": is_preferred}))
        alternatives += [offer for offer in offers if offer.number != chosen]
    return path, alternatives


def _offers(index: int, step: _SessionStep) -> list[_Rated]:
    human = step.get("human_completion")
    rows = list(step.get("completions") or [])
    count = len(rows)
    if human is not None:
        rows.append({"text": human} if isinstance(human, str) else human)
    offers = []
    for number, row in enumerate(rows):
        note = {"is_preferred_response": False, "is_human_response": number == count}
        note |= {"flagged": True} if row.get("flagged") else {}
        offers.append(_Rated(index, row.get("rating"), note, row["text"], number))
    return offers


def _chosen(step: _SessionStep, index: int, offers: list[_Rated], pre_generated: list[str]) -> int | None:
    """Number of the completion that the main path takes."""
    chosen = step.get("chosen_completion")
    if chosen is not None:
        if not 0 <= chosen < len(step.get("completions") or []):
            raise RecordError(f"field 'label.steps.{index}.chosen_completion': {chosen} is absent")
        return chosen
    if step.get("human_completion") is not None:
        return len(offers) - 1
    expected = pre_generated[index] if index < len(pre_generated) else None
    for offer in offers:
        if offer.text == expected and offer.rating is not None:
            return offer.number
    return next((offer.number for offer in offers if offer.rating == -1.0), None)


def _time(timestamp: str) -> datetime:
    try:
        return datetime.fromisoformat(timestamp)
    except ValueError as error:
        raise RecordError(f"field 'timestamp': {error}") from error


def _meta(record: _SessionRow) -> dict[str, Any]:
    values = {
        "generation": record.get("generation"),
        "is_quality_control_question": record.get("is_quality_control_question"),
        "is_initial_screening_question": record.get("is_initial_screening_question"),
        "pre_generated_answer": record["question"].get("pre_generated_answer"),
        "pre_generated_verifier_score": record["question"].get("pre_generated_verifier_score"),
        "total_time_ms": record["label"].get("total_time"),
    }
    return {name: value for name, value in values.items() if value is not None}


def _path_trace(
    builder: TraceBuilder,
    problem: Problem,
    parts: list[str],
    rated: Sequence[_Rated],
    *,
    branch: str,
    identity: Sequence[object],
    rater: str | None = None,
    meta: Mapping[str, Any],
    **fields: Any,
) -> LabelledTrace:
    """The path of ``parts``, with the labels of ``rated``; ``identity`` distinguishes equal paths."""
    trace_id = content_id("prm800k", branch, *identity, parts)
    meta = {**meta, "branch": branch, "rows": [step.row for step in rated]}
    trace = builder.trace(problem, parts, id=trace_id, meta=meta, **fields)
    labels = []
    for step in rated:
        reason = "written by the labeller, not rated" if step.row["is_human_response"] else "not rated"
        labels.append(builder.label(trace_id, step.step, step.rating, "human", rater=rater, reason=reason))
    return LabelledTrace(problem=problem, trace=trace, labels=tuple(labels))


_Prefix = tuple[str, ...]


class _StepRow(FileRow):
    instruction: str = Field(min_length=1)
    responses: list[str]
    next_response: str
    answer: str | None = None
    is_human_response: bool = False
    is_solution: bool = False
    is_preferred_response: bool = False
    rating: Rating | None
    error_reason: str | None = None


class _Group(NamedTuple):
    """Rows that rate the same response after the same prefix."""

    path: _Prefix
    """The prefix and the response."""
    rows: list[tuple[int, _StepRow]]


_Tree = dict[_Prefix, dict[str, _Group]]
"""Groups of one problem by prefix and response."""


def read_prm800k_steps(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Rebuild traces from step rows; the whole file is read before the first trace is yielded.

    Rows with equal instruction and prefix are alternatives of one step. A main trace is a longest path of
    rows each of which continues another; it ends with the preferred row, if there is none with the first row
    rated −1, else with the first. Every other response becomes a trace of prefix and response, labelled on
    its last step only. So each row is exactly one label and no prefix is invented.

    The same response may be rated in several rows (it was sampled twice); its step then has all those labels,
    whether or not they agree. ``meta["rows"]`` holds, for each label, the row's number and the fields without
    a place in a label, including the machine-written ``error_reason`` of some exports. A row's ``answer``
    becomes ``trace.answer`` of the trace that ends with it.
    """
    problems: dict[str, _Tree] = defaultdict(dict)
    for number, row in read_rows(path, _StepRow, lambda number, row: (number, row), report):
        prefix = tuple(row.responses)
        groups = problems[row.instruction].setdefault(prefix, {})
        group = groups.setdefault(row.next_response, _Group((*prefix, row.next_response), []))
        group.rows.append((number, row))
    builder = TraceBuilder("\n")
    for instruction, tree in problems.items():
        yield from _tree_traces(Problem(text=instruction, source="prm800k"), tree, builder)


def _tree_traces(problem: Problem, tree: _Tree, builder: TraceBuilder) -> Iterator[LabelledTrace]:
    leaves = [[group for group in groups.values() if group.path not in tree] for groups in tree.values()]
    main = [
        _main_end(ends)
        for ends, groups in zip(leaves, tree.values(), strict=True)
        if len(ends) == len(groups)
    ]
    labelled: set[_Prefix] = set()
    for end in main:
        groups = _new_groups(end, tree, labelled)
        if groups:  # empty if another path continues over a step that no row rates
            yield _group_trace(builder, problem, end, groups, "main")
    for ends in leaves:
        for end in ends:
            if end.path not in labelled:
                yield _group_trace(builder, problem, end, [end], "alternative")


def _main_end(ends: list[_Group]) -> _Group:
    """The response that ends the main path, among those that nothing continues."""
    preferred = [group for group in ends if any(row.is_preferred_response for _, row in group.rows)]
    wrong = [group for group in ends if any(row.rating == -1.0 for _, row in group.rows)]
    return [*preferred, *wrong, *ends][0]


def _new_groups(end: _Group, tree: _Tree, labelled: set[_Prefix]) -> list[_Group]:
    """Groups along the path to ``end`` that no earlier main trace has labelled; adds them to ``labelled``."""
    groups: list[_Group] = []
    for length in range(1, len(end.path) + 1):
        path = end.path[:length]
        group = tree.get(path[:-1], {}).get(path[-1])
        if group is not None and path not in labelled:
            labelled.add(path)
            groups.append(group)
    return groups


def _group_trace(
    builder: TraceBuilder, problem: Problem, end: _Group, groups: list[_Group], branch: str
) -> LabelledTrace:
    rated = [
        _Rated(step=len(group.path) - 1, rating=row.rating, row=_note(number, row))
        for group in groups
        for number, row in group.rows
    ]
    answers = [row.answer for _, row in end.rows if row.answer is not None]
    return _path_trace(
        builder,
        problem,
        list(end.path),
        rated,
        branch=branch,
        identity=("steps", problem.id),
        answer=answers[0] if answers else None,
        finish_reason="solution" if any(row.is_solution for _, row in end.rows) else None,
        meta={},
    )


def _note(number: int, row: _StepRow) -> dict[str, Any]:
    fields = {"is_human_response", "is_preferred_response", "is_solution"}
    fields |= set() if row.answer is None else {"answer"}
    fields |= {"error_reason"} & row.model_fields_set
    return {"row": number, **row.model_dump(include=fields)}
