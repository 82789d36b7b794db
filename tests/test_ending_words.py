"""How texts end, in every provider's words: a text that was cut off has no last number and no end."""

from __future__ import annotations

import asyncio
import json

import pytest

from surefoot.answers import AnswerChecker, Grader, Solution, final_answer
from surefoot.formats import ImportContext, ImportSettings, import_traces
from surefoot.io import ReadReport
from surefoot.labelling.judge import JudgeLabeller
from surefoot.models.kinds.generative import VerifierOutput
from surefoot.policies import IN_PROCESS
from surefoot.policies.episodes import build_traces
from surefoot.protocols import Completion, ProblemTrace, SampleRequest, SampleResult
from surefoot.records import Problem, Trace, Usage, ending_of
from surefoot.rl.rounds import select_solutions
from surefoot.rl.sample import Sample
from surefoot.segment import Line, segment_trace
from surefoot.training.sft import demonstrate

TRUNCATED = [
    "length", "max_tokens", "max_output_tokens", "incomplete", "model_length", "MAX_TOKENS", "abort",
    "failed", "insufficient_system_resource", "time_limit", "token_limit", "ERROR_LIMIT",
    "MALFORMED_FUNCTION_CALL",
]  # fmt: skip
FILTERED = ["content_filter", "content-filter", "refusal", "SAFETY", "guardrail_intervened", "IMAGE_SAFETY"]
FINISHED = ["stop", "end_turn", "stop_sequence", "completed", "STOP", "eos_token"]
CALLED = ["tool_calls", "tool_use", "function_call"]
CUT = TRUNCATED + FILTERED
TEXT = "Two and one.\nso we get 3"
PROBLEM = Problem(text="What is 1 + 2?", answer="3")


def trace(word: str | None, text: str = TEXT) -> Trace:
    return segment_trace(Trace(problem_id=PROBLEM.id, text=text, outcome=True, finish_reason=word), Line())


def test_each_word_means_one_ending() -> None:
    words = {"truncated": TRUNCATED, "filtered": FILTERED, "finished": FINISHED, "tool_call": CALLED}
    for ending, of_ending in words.items():
        assert {ending_of(word) for word in of_ending} == {ending}
    assert {ending_of(word) for word in (None, "", "unknown", "solution", "lengthy")} == {"unknown"}


@pytest.mark.parametrize("word", CUT)
def test_a_cut_off_text_is_not_graded_by_its_last_number(word: str) -> None:
    assert final_answer(Solution(text=TEXT, finish_reason=word), ["phrase", "last_number"]) is None
    result = SampleResult(completions=(Completion(text=TEXT, finish_reason=word, tokens=6),), usage=Usage())
    with AnswerChecker() as checker:
        (sampled,) = build_traces(
            "p", PROBLEM, result, seed=0, segmenter=Line(), grader=Grader(checker=checker)
        )
    assert (sampled.answer, sampled.outcome) == (None, False)


@pytest.mark.parametrize("word", [*FINISHED, None, "unheard of"])
def test_a_text_that_its_writer_ended_is_graded(word: str | None) -> None:
    assert final_answer(Solution(text=TEXT, finish_reason=word), ["last_number"]) == "3"


@pytest.mark.parametrize("word", CALLED)
def test_a_text_before_a_tool_call_is_no_answer(word: str) -> None:
    assert final_answer(Solution(text=TEXT, finish_reason=word), ["last_number"]) is None
    assert not trace(word).cut_off


@pytest.mark.parametrize("word", CUT)
def test_a_cut_off_solution_has_no_final_answer_and_no_end_to_learn(word: str) -> None:
    text = "Two and one.\nThe answer is 3"
    assert trace("stop", text).steps[-1].kind == "final_answer"
    assert trace(word, text).steps[-1].kind == "thought"
    assert demonstrate(trace("stop")).end
    assert not demonstrate(trace(word)).end
    cut = Sample(item=ProblemTrace(problem=PROBLEM, trace=trace(word)), tokens=1)
    kept, dropped = select_solutions([cut], most=1)
    assert (kept, dropped.total()) == ([], 1)


@pytest.mark.parametrize("word", CUT)
def test_a_cut_off_reply_is_no_verdict(word: str) -> None:
    completion = Completion(text='{"first_error": 0}', finish_reason=word, tokens=9)

    class CutOff:
        name, overlaps = "cut", True

        def capabilities(self):
            return IN_PROCESS

        async def sample(self, requests: list[SampleRequest]) -> list[SampleResult]:
            return [SampleResult(completions=(completion,), usage=Usage()) for _ in requests]

    judge = JudgeLabeller(policy=CutOff())
    (labels,) = asyncio.run(judge.label([ProblemTrace(problem=PROBLEM, trace=trace("stop"))]))
    assert {label.value for label in labels} == {None}
    output = VerifierOutput(steps=2)
    assert output.finished(SampleResult(completions=(completion,), usage=Usage()), 1) == []


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter", None])
def test_an_incomplete_response_of_a_batch_is_cut_off(reason: str | None, tmp_path) -> None:
    details = {"incomplete_details": {"reason": reason}} if reason else {}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": TEXT}]}
    body = {"status": "incomplete", **details, "output": [text]}
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps({"custom_id": "1", "response": {"status_code": 200, "body": body}}) + "\n")
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    (imported,) = import_traces(path, "batch", context)
    assert imported.trace.cut_off
