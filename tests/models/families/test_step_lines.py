"""Steps of several lines, indented lines, blank lines: what the authors' code makes of the same text."""

from itertools import pairwise

import pytest
import test_eurus_family
import test_reasoneval_family
import test_rlhflow_family
import test_skywork_family
import test_token_classifier_families
from published_checkpoints import item, save_math_shepherd, save_qwen_prm
from published_inputs import REFERENCE, qwen, rlhflow, skywork

from surefoot import load_prm
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Step, ToolCall, Trace
from surefoot.segment import BlankLine, Line, segment_trace, segmenter
from surefoot.segment.spans import own_lines

QUESTION = "How many?"
PARAGRAPHS = "Eggs:\n  - 3 big.\n  - 4\n\n   \\[\n   3+4=7.\n   \\]\n\n\tso 7  \n\n  the end"
LINES = "f():\n    a=1\n\n\n    b=2\n  b"
FAMILIES = ["math-shepherd", "rlhflow", "skywork", "qwen-prm", "pure", "reasoneval", "trl", "eurus"]


@pytest.fixture(scope="module")
def scorers(tmp_path_factory):
    hub = tmp_path_factory.mktemp("hub")
    save = {
        "math-shepherd": save_math_shepherd,
        "rlhflow": test_rlhflow_family.save,
        "skywork": test_skywork_family.save,
        "qwen-prm": save_qwen_prm,
        "trl": test_token_classifier_families.save,
        "reasoneval": lambda at: test_reasoneval_family.save(at, "34B"),
        "eurus": lambda at: test_eurus_family.save(at, 7),
    }
    for name, write in save.items():
        write(hub / name)
    at = {name: hub / name for name in save} | {"pure": hub / "trl"}
    return {
        name: load_prm(at[name], family=name, reference=at[name] if name == "eurus" else None)
        for name in FAMILIES
    }


def model_of(scorer):
    """What encodes: a scorer's model, or a model that scores itself."""
    return getattr(scorer, "model", scorer)


def encoded(scorer, text, cutter):
    problem = Problem(text=QUESTION)
    trace = segment_trace(Trace(problem_id=problem.id, text=text), cutter)
    [written] = model_of(scorer).encode([ProblemTrace(problem=problem, trace=trace)])
    return list(written.ids), list(written.positions)


@pytest.mark.parametrize("family", FAMILIES)
def test_paragraphs_with_indentation_are_fed_as_the_authors_feed_them(scorers, family):
    tokenizer = model_of(scorers[family]).tokenizer
    expected = REFERENCE[family](tokenizer, QUESTION, PARAGRAPHS.split("\n\n"), PARAGRAPHS)
    assert encoded(scorers[family], PARAGRAPHS, BlankLine()) == (list(expected[0]), list(expected[1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_indented_lines_are_fed_as_the_authors_feed_them(scorers, family):
    lines = [line for line in LINES.split("\n") if line]
    expected = REFERENCE[family](model_of(scorers[family]).tokenizer, QUESTION, lines, LINES)
    assert encoded(scorers[family], LINES, Line()) == (list(expected[0]), list(expected[1]))


def test_a_solution_with_the_familys_own_separators_is_fed_as_it_stands(scorers):
    text = "Step 1: a = 1 ки\nStep 2: b,\n  so 2 ки\nStep 3: c"
    steps = [step.strip() for step in text.split("ки\n")]  # RLHFlow's script, for its Mistral data
    ids, reads = rlhflow(scorers["rlhflow"].model.tokenizer, QUESTION, steps, text)
    assert encoded(scorers["rlhflow"], text, segmenter("ki")) == (ids, reads)
    assert encoded(scorers["rlhflow"], text + " ки", segmenter("ki")) == (ids, reads)
    tokenizer = scorers["math-shepherd"].model.tokenizer
    tagged = tokenizer(f"{QUESTION} {text} ки")["input_ids"]  # the card: question, a space, the output
    reads = [at for at, token in enumerate(tagged) if token == tokenizer.encode("ки")[-1]]
    assert encoded(scorers["math-shepherd"], text + " ки", segmenter("ki")) == (tagged, reads)
    tokenizer = scorers["qwen-prm"].model.tokenizer
    expected = qwen(tokenizer, QUESTION, ["a\n b", "c"], text)
    assert encoded(scorers["qwen-prm"], "a\n b<extra_0>c<extra_0>", segmenter("regex:<extra_0>")) == expected


def test_a_word_that_ends_like_a_separator_stays(scorers):
    [written] = scorers["rlhflow"].model.encode([item(QUESTION, ["ошибки", "x"])])
    assert "ошибки" in scorers["rlhflow"].model.tokenizer.decode(written.ids)


def test_a_blank_line_inside_a_step_stays_and_is_two_line_ends_for_skywork(scorers):
    steps = ["code:\n\n  a = 1.\n\n  b", "2"]
    [written] = scorers["skywork"].model.encode([item(QUESTION, steps)])
    ids, reads = skywork(scorers["skywork"].model.tokenizer, QUESTION, steps, "\n\n".join(steps))
    assert (list(written.ids), list(written.positions)) == (ids, reads)
    assert [written.ids[at] for at in written.positions] == [10, 10]


def test_indentation_that_was_cut_off_is_put_back():
    text = "a\n \n  b \n\n\tc\r\n d"
    for ends in [(0, 6, 11, 15, 16), (0, 4, 10, 14, 16)]:
        assert [own_lines(text, span) for span in pairwise(ends)] == ["a", "  b ", "\tc", " d"]
    assert own_lines("a b", (2, 3)) == "b"
    assert own_lines("\n  a", (0, 4)) == "  a"
    assert [own_lines(" \n\n", (0, 3)), own_lines("", (0, 0))] == [" ", ""]


@pytest.mark.parametrize("family", ["qwen-prm", "pure", "eurus"])
def test_traces_cut_with_the_indentation_in_the_step_before_give_the_same_tokens(scorers, family):
    problem, text = Problem(text=QUESTION), "a\n\n  b\n\n\tc"
    steps = (Step(start=0, end=5), Step(start=5, end=9), Step(start=9, end=10))
    trace = Trace(problem_id=problem.id, text=text, steps=steps)
    [old] = model_of(scorers[family]).encode([ProblemTrace(problem=problem, trace=trace)])
    assert (list(old.ids), list(old.positions)) == encoded(scorers[family], text, BlankLine())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_messages_of_an_agents_run_are_refused_alone(scorers, family):
    messages = (
        Message(role="user", content=QUESTION),
        Message(role="assistant", tool_calls=(ToolCall(name="count"),)),
        Message(role="assistant", content="2"),
    )
    run = segment_trace(Trace(problem_id="p", messages=messages))
    text = item(QUESTION, ["1", "2"])
    read, refused = scorers[family].score_traces(
        [text, ProblemTrace(problem=text.problem.model_copy(update={"id": "p"}), trace=run)]
    )
    assert None not in read.scores
    assert refused.scores == (None, None)
    assert "reads solutions that are text" in refused.unscored_reason


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_of_unknown_tokens_is_refused(scorers, family):
    tokenizer = model_of(scorers[family]).tokenizer
    own, tokenizer.unk_token = tokenizer.unk_token, "7"
    try:
        read, refused = scorers[family].score_traces(
            [item(QUESTION, ["1 2"]), item("777", ["7777777\n"] * 9)]
        )
    finally:
        tokenizer.unk_token = own
    assert None not in read.scores
    assert refused.scores == (None,) * 9
    assert "of the tokens are unknown to the tokenizer" in refused.unscored_reason
