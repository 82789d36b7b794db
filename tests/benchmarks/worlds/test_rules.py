"""The rule world: exact truth, its checker, changed specifications, the split, and what is trained on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from rollouts import TellsTokens

from benchmarks.rules import models
from benchmarks.rules import run as benchmark
from benchmarks.worlds.digits.checkpoints import build_tokenizer
from benchmarks.worlds.rules import (
    DECISIONS,
    PARAPHRASES,
    TOPICS,
    TOYS,
    RuleRequest,
    RuleVerifier,
    all_requests,
    changed,
    citation,
    deciding_clause,
    draw_specification,
    parse_request,
    reasoned_answer,
)
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import RecordError, TrainingError
from surefoot.labelling import Clause, VerifierLabeller
from surefoot.models import load_causal
from surefoot.policies import PromptFormat
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.records import StepScores, Trace
from surefoot.rl import Judges, Mixed, RLConfig, Summed, Task, roll_out, training_samples
from surefoot.segment import Line, segment_trace
from surefoot.training import build_cloning_examples, demonstrate

SPLIT = models.split_rules(0)
SPECIFICATION = SPLIT.specification
TRAINING = [request.problem(SPECIFICATION) for request in SPLIT.training]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(models.RULE_PIECES)


def verdicts(request, text, specification=SPECIFICATION):
    problem = request.problem(specification)
    trace = segment_trace(Trace(problem_id=problem.id, text=text), Line())
    (row,) = RuleVerifier(specification).verify([ProblemTrace(problem=problem, trace=trace)])
    return row


def test_requests_round_trip_and_others_are_refused():
    for request in all_requests():
        assert parse_request(request.text) == request
    for text in ("A nurse asks about a house.", "Start with 7. Add 3.", ""):
        with pytest.raises(RecordError, match="not a request of the rule world"):
            parse_request(text)


def test_the_exception_for_who_asks_decides_before_the_topic():
    rng = np.random.default_rng(3)
    for _ in range(20):
        specification = draw_specification(rng, paraphrase=0.5)
        by_text = {clause.text: clause for clause in specification.clauses}
        for request in all_requests()[::7]:
            name = request.topic if request.topic in by_text else PARAPHRASES[request.topic]
            expected = by_text.get(request.role, by_text[name])
            assert request.deciding(specification) == expected
            assert request.problem(specification).answer == expected.decision


def test_exceptions_override_and_ambiguity_decides_nothing():
    def clause(name, overrides=()):
        return Clause(id=name, text=name, decision="refuse", overrides=overrides)

    first, second, third = clause("1"), clause("2", ("1",)), clause("3")
    assert deciding_clause([first]) == first
    assert deciding_clause([first, second]) == second
    assert deciding_clause([first, third]) is None
    assert deciding_clause([]) is None
    over_all = clause("3", "all")
    assert deciding_clause([first, second, over_all]) == over_all


def test_a_request_without_a_clause_is_an_error():
    specification = draw_specification(np.random.default_rng(0), topics=["money"], exceptions=0)
    with pytest.raises(RecordError, match="does not cover"):
        RuleRequest(role="nurse", verb="asks about", thing="rifle").deciding(specification)


def test_correct_reasoning_passes_for_every_request():
    for request in all_requests()[::11]:
        text = reasoned_answer(request, SPECIFICATION)
        assert [verdict.value for verdict in verdicts(request, text)] == [1, 1, 1]
        assert models.cites_deciding_clause(request, text, SPECIFICATION)


def test_each_fault_is_found_at_its_step_and_carries_the_clause():
    request = next(
        one
        for one in all_requests()
        if one.applicable(SPECIFICATION)[1] is None and one.deciding(SPECIFICATION).decision == "refuse"
    )
    right = request.deciding(SPECIFICATION)
    other = next(clause for clause in SPECIFICATION.clauses if clause.text in TOPICS and clause != right)
    head, tail = "<think>\n", "no exception\n</think>\nAnswer: refuse\n"

    def first(line):
        return verdicts(request, head + line + tail)[0]

    assert (first(citation(right)).value, first(citation(right)).clause) == (1, right.id)
    unknown = first(citation(right).replace(f"clause {right.id},", "clause 77,"))
    assert (unknown.value, unknown.reason, unknown.clause) == (-1, "clause 77 does not exist", "77")
    elsewhere = first(citation(other))
    assert elsewhere.value == -1
    assert "does not apply" in elsewhere.reason
    misread = first(citation(right).replace("refuse", "allow"))
    assert (misread.value, misread.reason) == (
        -1,
        f"the line of clause {right.id} is {right.line.strip()!r}",
    )
    assert first("some words\n").value == -1
    answer = verdicts(request, head + citation(right) + tail.replace("refuse", "ask"))[-1]
    assert answer.reason == f"clause {right.id} decides: refuse"
    uncited = verdicts(request, models.plain_answer("refuse"))
    assert [verdict.value for verdict in uncited] == [-1]
    assert uncited[0].reason == f"clause {right.id} decides, and it is not cited"


def test_an_overlooked_exception_is_wrong():
    request = next(one for one in all_requests() if one.applicable(SPECIFICATION)[1] is not None)
    topic, exception = request.applicable(SPECIFICATION)
    text = f"<think>\n{citation(topic)}no exception\n</think>\nAnswer: {topic.decision}\n"
    row = verdicts(request, text)
    assert row[1].reason == f"clause {exception.id} is an exception for a {request.role}"
    assert row[1].value == row[2].value == -1


def test_labels_have_the_clause():
    request = SPLIT.training[0]
    problem = request.problem(SPECIFICATION)
    trace = segment_trace(Trace(problem_id=problem.id, text=reasoned_answer(request, SPECIFICATION)), Line())
    labeller = VerifierLabeller(verifiers=(RuleVerifier(SPECIFICATION),))
    (labels,) = asyncio.run(labeller.label([ProblemTrace(problem=problem, trace=trace)]))
    assert labels[0].evidence.clause == request.applicable(SPECIFICATION)[0].id
    assert labels[-1].evidence.clause is None


def test_changes_change_what_they_name():
    rng = np.random.default_rng(1)
    before = {clause.text: clause for clause in SPECIFICATION.clauses}
    swapped = {clause.text: clause for clause in changed(SPECIFICATION, rng, "swap").clauses}
    assert swapped.keys() == before.keys()
    assert all(swapped[text].decision != clause.decision for text, clause in before.items())
    assert all(swapped[text].id == clause.id for text, clause in before.items())
    renumbered = {clause.text: clause for clause in changed(SPECIFICATION, rng, "renumber").clauses}
    assert any(renumbered[text].id != clause.id for text, clause in before.items())
    assert all(renumbered[text].decision == clause.decision for text, clause in before.items())
    paraphrased = changed(SPECIFICATION, rng, "paraphrase")
    assert {clause.text for clause in paraphrased.clauses}.isdisjoint(TOPICS)
    for request in SPLIT.training[::17]:
        assert request.deciding(paraphrased).decision == request.deciding(SPECIFICATION).decision


@pytest.mark.parametrize("seed", range(6))
def test_nothing_of_a_held_out_clause_is_in_the_training_requests(seed):
    split = models.split_rules(seed)
    assert split.specification == models.split_rules(seed).specification
    assert {clause.decision for clause in split.trained} == {*DECISIONS}
    assert len({*split.trained, *split.read, *split.unread}) == len(split.specification.clauses)
    held_out = {clause.text for clause in (*split.read, *split.unread)}
    things = {thing for topic, of in TOPICS.items() if topic in held_out for thing in of}
    for request in split.training:
        assert {*filter(None, request.applicable(split.specification))} <= {*split.trained}
        assert not {request.role, request.thing} & (held_out | things)
    training = {request.text for request in split.training}
    for name, requests in split.tests.items():
        assert requests, name
        assert training.isdisjoint(request.text for request in requests)
    assert all(one.deciding(split.specification) in split.read for one in split.tests["clauses"])
    assert all(one.deciding(split.specification) in split.unread for one in split.tests["unread"])
    for twin in split.tests["twins"]:
        assert twin.topic == TOYS
        assert twin.deciding(split.specification).decision == "allow"


def test_all_texts_of_the_world_round_trip_through_the_tokenizer(tokenizer):
    rng = np.random.default_rng(0)
    for request in all_requests()[::13]:
        specification = draw_specification(rng, paraphrase=0.5)
        text = f"{specification.text}{request.text}\n{reasoned_answer(request, specification)}"
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        trained_on = [
            "<s>",
            *(clause.line for clause in specification.clauses),
            *models.request_pieces(request),
            *models.answer_pieces(request, specification),
        ]
        assert tokenizer.convert_ids_to_tokens(ids) == trained_on[:-1]


def test_what_is_read_are_citations_in_both_wordings():
    rng = np.random.default_rng(0)
    texts = set()
    for _ in range(8):
        prompt, pieces, learned = models.quoted(rng, SPLIT.read)
        assert prompt == ["<s>"]
        assert learned == [False, True] * len(SPLIT.read)
        texts |= set("".join(pieces).splitlines(True))
    reworded = [
        clause.model_copy(update={"text": PARAPHRASES.get(clause.text, clause.text)}) for clause in SPLIT.read
    ]
    assert texts == {*map(citation, SPLIT.read), *map(citation, reworded)}


def test_a_policy_is_trained_in_two_stages(tmp_path):
    models.train_rule_policy(tmp_path / "lookup", updates=2)
    models.train_rule_policy(tmp_path / "start", read=SPLIT.read, base=tmp_path / "lookup", updates=1)
    model, tokenizer = load_causal(tmp_path / "start")
    assert model.config.vocab_size == len(tokenizer)
    with pytest.raises(ValueError, match="'read' needs a 'base'"):
        models.train_rule_policy(tmp_path / "none", read=SPLIT.read)


def test_no_byte_of_the_specification_is_in_a_training_prompt(tokenizer):
    """What fine-tuning reads: decoded, each example is the request and the completion, and no more."""
    prompt = PromptFormat()
    SPECIFICATION.require_absent(str(prompt.render(problem)) for problem in TRAINING)
    traces = [
        segment_trace(
            Trace(
                problem_id=problem.id,
                text=reasoned_answer(request, SPECIFICATION),
                finish_reason="stop",
                meta={"specification": SPECIFICATION.text},
            ),
            Line(),
        )
        for request, problem in zip(SPLIT.training, TRAINING, strict=True)
    ]
    examples = build_cloning_examples(
        tokenizer,
        prompt,
        {problem.id: problem for problem in TRAINING},
        [demonstrate(trace) for trace in traces],
        max_length=96,
    ).examples
    assert len(examples) == len(traces)
    for example, problem, trace in zip(examples, TRAINING, traces, strict=True):
        read = tokenizer.decode(example.ids[: example.positions[0]], skip_special_tokens=True)
        assert read.encode() == f"{problem.text}\n".encode()
        assert not any(line.strip() in read for c in SPECIFICATION.clauses for line in (c.line, citation(c)))
        learned = tokenizer.decode([example.ids[at] for at in example.positions], skip_special_tokens=True)
        assert learned.encode() == (trace.text or "").encode()
    with_it = PromptFormat(template=SPECIFICATION.text + "{problem}\n")
    with pytest.raises(TrainingError, match="holds clause"):
        SPECIFICATION.require_absent(str(with_it.render(problem)) for problem in TRAINING)


class RecordingScorer:
    """Scores every step 1, and remembers every byte that it is shown."""

    name = "recording"

    def __init__(self):
        self.shown: list[str] = []

    def score_traces(self, items):
        self.shown += [f"{item.problem.model_dump_json()}{item.trace.model_dump_json()}" for item in items]
        return [
            StepScores(trace_id=one.trace.id, scorer=self.name, scores=(1.0,) * len(one.trace.steps))
            for one in items
        ]


def test_no_byte_of_the_reasoning_reaches_the_judge_of_rl(tokenizer):
    scorer = RecordingScorer()
    by_text = {f"{request.text}\n": reasoned_answer(request, SPECIFICATION) for request in SPLIT.training}
    policy = TellsTokens(ScriptedPolicy(lambda request, _sample: by_text[request.prompt]), tokenizer)
    with AnswerChecker("exact") as checker:
        task = Task(
            problems=TRAINING[:8],
            held_out=TRAINING[8:9],
            segmenter=Line(),
            grader=Grader(checker=checker),
            scorer=scorer,
        )
        config = RLConfig(credit=Mixed(of=Summed()), problems=8, samples=2)
        batch = asyncio.run(
            roll_out(policy, task.problems, tokenizer, task, n=2, seed=0, sampling=Sampling())
        )
    samples = training_samples(batch.groups, Judges(scorer=scorer), config)
    assert len(scorer.shown) == 16
    everything = "".join(scorer.shown)
    assert "Answer: " in everything
    assert "think" not in everything
    for clause in SPECIFICATION.clauses:
        assert f"clause {clause.id}," not in everything
    assert "no exception" not in everything
    assert all(sample.canaries for group in samples for sample in group)
    assert all(sample.trace.outcome for group in samples for sample in group)


def test_the_figures_compare_deliberation_with_the_better_of_two_baselines():
    def tests(right, wrong):
        return {
            "tests": {name: {"right": right, "cited": [1.0, 0.5], "wrong": wrong} for name in benchmark.SIZES}
        }

    arms = {arm: tests([0.0, 0.0], [True, True]) for arm in benchmark.ARMS}
    arms[benchmark.FASTER] = tests([0.5, 0.5], [False, True])
    arms[benchmark.DELIBERATION] = tests([1.0, 0.5], [False, False])
    changes = {name: {"answer": 0.9, "clause": 0.8} for name in benchmark.CHANGES}
    one = {"arms": arms, "changed": changes, "passed": 0.5, "right_but_rejected": 0.25}
    values = {row["name"]: row["value"] for row in benchmark.figures([one, one])}
    assert values["rule_compliance_difference"] == 25
    assert values["over_refusal_difference"] == -50
    assert (values["right_clause_share"], values["swap_followed"]) == (0.75, 0.9)


def test_arms_learn_what_they_are_named_after():
    problems = [request.problem(SPECIFICATION) for request in SPLIT.training[:40]]
    written = []
    for request, problem in zip(SPLIT.training, problems, strict=False):
        text = reasoned_answer(request, SPECIFICATION)
        if len(written) % 4 == 3:
            text = text.replace("clause", "rule")
        trace = segment_trace(
            Trace(problem_id=problem.id, text=text, answer=problem.answer, finish_reason="stop"), Line()
        )
        labeller = VerifierLabeller(verifiers=(RuleVerifier(SPECIFICATION),))
        (labels,) = asyncio.run(labeller.label([ProblemTrace(problem=problem, trace=trace)]))
        written.append(LabelledTrace(problem=problem, trace=trace, labels=tuple(labels)))
    texts = {arm: [trace.text for trace in benchmark.training_traces(arm, written)] for arm in benchmark.ARMS}
    assert len(texts[benchmark.UNFILTERED]) == 40
    assert len(texts[benchmark.DELIBERATION]) == len(texts[benchmark.ANSWERS]) == 30
    assert texts[benchmark.PROMPTED] == texts[benchmark.DELIBERATION]
    assert not any("think" in text for text in texts[benchmark.ANSWERS])
    assert {*texts[benchmark.REFUSALS]} == {"Answer: refuse\n"}
