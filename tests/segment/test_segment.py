"""Spans tile any text and cut nothing they must not; token positions hold with real tokenizers."""

from __future__ import annotations

import gc
import time
from itertools import accumulate, pairwise

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from surefoot.errors import SegmentError
from surefoot.protocols import Segmenter
from surefoot.records import Message, Reasoning, Step, ToolCall, Trace
from surefoot.segment import (
    BlankLine,
    Line,
    Marker,
    Sentence,
    Thoughts,
    reasoning_spans,
    segment_trace,
    segmenter,
    token_positions,
    trace_blocks,
)
from surefoot.segment.traces import CutTrace, cut_trace

NAMES = ["blank-line", "line", "sentence", "step-k", "ki", "thoughts", "turns", "regex:;", r"regex:(?=Step)"]
PIECES = st.sampled_from(
    [
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        " ",
        "\t",
        "Step 1:",
        "step 2.",
        "ки",
        "ки\n",
        "a",
        "3.14",
        ". ",
        "! ",
        "。",
        ";",
        "```",
        "\n```\n",
        "~~~",
        "\n~~~\n",
        "$",
        "$$",
        "\\[",
        "\\]",
        "\\\\",
        "\\begin{a}",
        "\\end{a}",
        "e.g. ",
        "é",
        "🦊",
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join))
quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def cut(name, text):
    return [text[start:end] for start, end in segmenter(name).segment(text)]


@quick
@given(TEXTS)
def test_every_segmenter_tiles_any_text(text):
    for name in NAMES:
        parts = cut(name, text)
        assert "".join(parts) == (text if text.strip() else "")
        assert all(part.strip() for part in parts)
        for before, part in pairwise(parts):
            indentation = part[: len(part) - len(part.lstrip())]
            assert not {"\n", "\r"} & set(indentation)
            assert not indentation or before[-1] in "\r\n"
            blank = before[len(before.rstrip()) :]  # what follows a line break is the next line's own
            assert not {"\n", "\r"} & set(blank) or blank[-1] in "\r\n"


@quick
@given(
    TEXTS,
    st.sampled_from(
        ["```\n{}\n```", "~~~py\n{}\n~~~", "$${}$$", "\\[{}\\]", "\\begin{{cases}}{}\\end{{cases}}"]
    ),
)
def test_protected_blocks_stay_whole(inside, frame):
    for mark in ("`", "~", "$", "\\"):
        inside = inside.replace(mark, "")
    block = frame.format(inside)
    text = f"Intro. a;\n\n{block}\n\nAfter. b; Step 3: ки"
    start = text.index(block)
    for name in NAMES:
        for begin, _ in segmenter(name).segment(text):
            assert not start < begin < start + len(block)


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("blank-line", "\n a\nb\n \n\n  c\r\n\r\nd", ["\n a\nb\n \n\n", "  c\r\n\r\n", "d"]),
        ("blank-line", "a\r\nb", ["a\r\nb"]),
        ("line", "a\r\n\r\n  b\rc", ["a\r\n\r\n", "  b\r", "c"]),
        ("line", "a\n```\nx\n\ny", ["a\n", "```\nx\n\ny"]),
        ("line", "a `x` ```y```\nb", ["a `x` ```y```\n", "b"]),
        ("line", "a \\\\[2pt]\nb \\]\nc", ["a \\\\[2pt]\n", "b \\]\n", "c"]),
        ("line", "```\n$$\n```\na\n$$b\n$$", ["```\n$$\n```\n", "a\n", "$$b\n$$"]),
        ("sentence", "It is 3.14. So, e.g. this. See Fig. 2. Dr. No left!", None),
        ("sentence", "1. Add. Then\n2. Sub.", ["1. Add. ", "Then\n2. Sub."]),
        ("sentence", "Let $a. b$ be. It costs $5. Now $6.", ["Let $a. b$ be. ", "It costs $5. ", "Now $6."]),
        ("sentence", 'He said "Go." Then (no?) yes', ['He said "Go." ', "Then (no?) ", "yes"]),
        ("sentence", "对。好", ["对。", "好"]),
        ("step-k", "Well\nStep 1: a\nsee Step 2: no\n**Step 2:** b\n## Step 3\nc", None),
        ("ki", "Step 1: 5 ки\nStep 2: ошибки 6ки\nrest", ["Step 1: 5 ки\n", "Step 2: ошибки 6ки\n", "rest"]),
        ("regex:(?=Step)", "pre Step 1 Step 2", ["pre ", "Step 1 ", "Step 2"]),
        ("line", "def f():\n    x\n \n\ty", ["def f():\n", "    x\n \n", "\ty"]),
        ("blank-line", "a\n\n   \\[\n   b\n   \\]\n\n  c", ["a\n\n", "   \\[\n   b\n   \\]\n\n", "  c"]),
        ("regex:;", "a;  b;\n  c", ["a;  ", "b;\n", "  c"]),
        ("line", " \n ", []),
    ],
)
def test_written_examples(name, text, parts):
    special = {
        "sentence": ["It is 3.14. ", "So, e.g. this. ", "See Fig. 2. ", "Dr. No left!"],
        "step-k": ["Well\nStep 1: a\nsee Step 2: no\n", "**Step 2:** b\n", "## Step 3\nc"],
    }
    assert cut(name, text) == (special[name] if parts is None else parts)


@pytest.mark.parametrize(
    "unit", ["\n", ".", "```\n", "$", "\\begin{a}", "\\begin{a}\\end{b}", "\\[", "1. ", "ки", " "]
)
def test_hostile_text_is_cut_in_linear_time(unit):
    text = "x" + unit * 20_000 + "y"  # quadratic work would take minutes
    for name in NAMES:
        assert "".join(cut(name, text)) == text


def test_names_and_patterns_are_checked():
    assert isinstance(segmenter("line"), Segmenter)
    assert segmenter("step-k") == Marker.step_k()
    assert [segmenter(name) for name in ("blank-line", "line", "sentence")] == [
        BlankLine(),
        Line(),
        Sentence(),
    ]
    with pytest.raises(
        SegmentError,
        match="blank-line, line, sentence, thoughts, turns, step-k, ki, python, "
        "prose-and-code, rocq, lean, regex:PATTERN",
    ):
        segmenter("lines")
    for pattern in ("", "("):
        with pytest.raises(SegmentError, match="pattern"):
            Marker(pattern)
    with pytest.raises(SegmentError, match="before or after"):
        Marker("a", "between")


def test_text_trace_keeps_its_id():
    trace = Trace(problem_id="p", text="a\nb")
    cut_trace = segment_trace(trace, Line())
    assert cut_trace.id == trace.id
    assert cut_trace.steps == (Step(start=0, end=2), Step(start=2, end=3))
    assert Trace.model_validate_json(cut_trace.model_dump_json()) == cut_trace
    assert segment_trace(trace) == cut_trace
    paragraphs = trace.model_copy(update={"text": "a\nb\n\nc"})
    assert [step.end for step in segment_trace(paragraphs).steps] == [5, 6]


def test_spans_of_a_foreign_segmenter_must_tile():
    class Gappy:
        def segment(self, text):
            return [(0, 1), (2, len(text))]

    with pytest.raises(SegmentError, match="do not tile"):
        segment_trace(Trace(problem_id="p", text="a\nb"), Gappy())


def test_chat_trace_has_a_step_per_assistant_message():
    messages = (
        Message(role="user", content="q"),
        Message(role="assistant", tool_calls=(ToolCall(name="f"),)),
        Message(role="tool", content="r"),
        Message(role="assistant", content="done\n\nyes"),
    )
    run = Trace(problem_id="p", messages=messages)
    trace = segment_trace(run, granularity="message")
    whole = {"part": "message", "kind": "message"}
    assert trace.steps == (Step(start=0, end=0, message=1, **whole), Step(start=0, end=9, message=3, **whole))
    assert trace.granularity == "message"
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


CORPUS = [
    "Step one: we add 3.14 to x.\n\nStep two: so x = 5 ки\nthen done.",
    "The fox 🦊 says naïve things.",
] * 4


def byte_bpe(trim: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not trim)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def characters() -> Tokenizer:
    vocabulary = {c: n for n, c in enumerate(["?", *sorted(set("".join(CORPUS)))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return tokenizer


TOKENIZERS = {
    "byte-level BPE": byte_bpe(False),
    "byte-level BPE across words": byte_bpe(True),
    "WordPiece": word_piece(),
    "Unigram": unigram(),
    "characters": characters(),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@quick
@given(
    parts=st.lists(
        st.text(alphabet="Step onwx=3.14\n\t🦊éки:", min_size=1, max_size=12), min_size=1, max_size=6
    ),
    prompt=st.sampled_from(["", "Q: what?\n", "🦊 "]),
    separator=st.sampled_from(["", "\n", "\n\n", " ки\n"]),
)
def test_positions_with_real_tokenizers(name, parts, prompt, separator):
    body = separator.join(parts)
    ends = [*accumulate(len(part) + len(separator) for part in parts[:-1]), len(body)]
    spans = [*pairwise([0, *ends])] if parts else []
    text = prompt + body
    offsets = TOKENIZERS[name].encode(text).offsets
    positions = token_positions(text, offsets, spans, base=len(prompt))
    assert len(positions) == len(spans)
    before = None
    for (start, end), position in zip(spans, positions, strict=True):
        visible = text[len(prompt) + start : len(prompt) + end].rstrip()
        if not visible:
            continue
        last = len(prompt) + start + len(visible) - 1
        holders = [i for i, (low, high) in enumerate(offsets) if low <= last < high]  # brute force
        assert position == holders[-1]
        if before is not None:
            shared = offsets[position][0] < len(prompt) + start
            assert position > before or (position == before and shared)
        before = position


def test_special_tokens_shared_tokens_and_truncation():
    text = "ab\ncd\n ef"
    spans = [(0, 3), (3, 7), (7, 9), (9, 9)]
    offsets = [(0, 0), (0, 2), (2, 4), (4, 5), (5, 7), (7, 9), (0, 0)]
    assert token_positions(text, offsets, spans) == [1, 3, 5, None]
    assert token_positions(text, [(0, 0), (0, 4), (4, 5)], spans) == [1, 2, None, None]
    assert token_positions(text, [(0, 9)], spans) == [0, 0, 0, None]
    assert token_positions(text, [], spans) == [None] * 4
    assert token_positions("é x", [(0, 1), (0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 3)]) == [1, 2, 3]


def test_a_dropped_last_character_is_not_truncation():
    # The tokenizer removed the zero-width space at 1; a later token shows that the text went on.
    assert token_positions("a\u200b b", [(0, 1), (3, 4)], [(0, 3), (3, 4)]) == [0, 1]


def test_left_truncation_gives_none():
    assert token_positions("ab cd", [(3, 5)], [(0, 3), (3, 5)]) == [None, 0]


def test_misfits_are_refused():
    with pytest.raises(SegmentError, match="go back"):
        token_positions("ab", [(1, 2), (0, 1)], [(0, 2)])
    with pytest.raises(SegmentError, match="text has 2"):
        token_positions("ab", [(0, 3)], [(0, 2)])
    with pytest.raises(SegmentError, match=r"spans\[0\]"):
        token_positions("ab", [(0, 2)], [(0, 2)], base=1)


THINKING = (
    "<think>\nLet n = 4. Then 2n = 8.\n\nWait, n is 5. So 2n = 10.\nAlternatively, count up.\n</think>\n\n"
    "n is 5.\n\nThe answer is 10."
)


def test_empty_reasoning_belongs_to_what_follows():
    for text in ("<think>\n\n</think>\n\nFour.", "<think></think> <think>\n</think>Four."):
        trace = segment_trace(Trace(problem_id="p", text=text))
        assert (texts(trace), [step.kind for step in trace.steps]) == ([text], ["thought"])


def texts(trace):
    return [trace.step_text(index) for index in range(len(trace.steps))]


def test_reasoning_in_the_text_is_cut_into_thoughts_and_what_follows_at_blank_lines():
    trace = segment_trace(Trace(problem_id="p", text=THINKING))
    assert texts(trace) == [
        "<think>\nLet n = 4. Then 2n = 8.\n\n",
        "Wait, n is 5. So 2n = 10.\n",
        "Alternatively, count up.\n</think>\n\n",
        "n is 5.\n\n",
        "The answer is 10.",
    ]
    assert [step.kind for step in trace.steps] == ["reasoning"] * 3 + ["thought", "final_answer"]
    by_name = segment_trace(trace, segmenter("line"))
    assert by_name.granularity == "line"
    assert len(by_name.steps) == 5  # the tags are no lines of their own


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("plain", []),
        ("<think>a</think>b", [(0, 16)]),
        ("a</think>\n b", [(0, 11)]),  # the prompt opened it
        ("a <think>b", [(2, 10)]),  # cut off while thinking
        ("<think>a</think><think>b</think> c", [(0, 16), (16, 33)]),
        ("<think>a<think>b</think>c</think>d", [(0, 24)]),
    ],
)
def test_where_reasoning_stands(text, spans):
    assert reasoning_spans(text) == spans


@given(st.text(alphabet="ab\n .", min_size=1, max_size=12) | st.text(max_size=20))
def test_steps_of_any_text_with_reasoning_tile_it(text):
    for form in (f"<think>{text}</think>{text}", f"{text}</think>{text}", f"{text}<think>{text}"):
        trace = segment_trace(Trace(problem_id="p", text=form))
        assert "".join(texts(trace)) == (form if text.strip() else "")  # tags alone are no step
        assert not {*texts(trace)} & {"<think>", "</think>"}


def test_turns_begin_thoughts_and_ordinary_words_do_not():
    text = "Add them. Now 3. But wait, 4. Hmm, no. The waiter waits.\n\nSo 5. Oh, hold on: 6."
    assert [text[start:end] for start, end in Thoughts().segment(text)] == [
        "Add them. Now 3. ",
        "But wait, 4. ",
        "Hmm, no. The waiter waits.\n\n",
        "So 5. ",
        "Oh, hold on: 6.",
    ]
    assert len(Thoughts(paragraphs=False).segment(text)) == 4
    assert len(Thoughts(min_length=80).segment(text)) == 4


def test_turns_are_found_in_linear_time():
    for hostile in (
        "so " * 60_000,
        "but\n" * 50_000,
        "Wait. " * 30_000,
        "no, " * 50_000 + "x",
        "a" + "\n" * 90_000 + "b",
    ):
        spans = Thoughts().segment(hostile)
        assert "".join(hostile[start:end] for start, end in spans) == hostile


RUN = (
    Message(role="system", content="Rules."),
    Message(role="user", content="Refund order 7."),
    Message(
        role="assistant",
        content="Plan: look it up, then refund.",
        reasoning=Reasoning(text="An order.\n\nWait, which shop?"),
        tool_calls=(
            ToolCall(id="a", name="order", arguments='{"id": 7}'),
            ToolCall(id="b", name="order", arguments='{"id": 7}'),
        ),
    ),
    Message(role="tool", content='{"error": "time-out"}', tool_call_id="a"),
    Message(role="tool", content="Error: time-out", tool_call_id="b"),
    Message(role="assistant", content="Again.", tool_calls=(ToolCall(id="c", name="order"),)),
    Message(role="tool", content="paid", tool_call_id="c"),
    Message(role="assistant", content="Done.", reasoning=Reasoning(visibility="withheld", tokens=40)),
)


def test_a_thought_and_two_calls_are_three_steps_and_one_at_message_granularity():
    message = Message(role="assistant", content="I look.", tool_calls=RUN[2].tool_calls)
    trace = Trace(problem_id="p", messages=(RUN[1], message))
    assert texts(segment_trace(trace)) == ["I look.", 'order({"id": 7})', 'order({"id": 7})']
    assert texts(segment_trace(trace, granularity="message")) == [
        'I look.\norder({"id": 7})\norder({"id": 7})'
    ]


@pytest.mark.parametrize("granularity", ["part", "message"])
@pytest.mark.parametrize("name", [None, "line", "sentence", "prose-and-code"])
def test_a_cut_trace_is_written_like_one_with_built_steps(name, granularity):
    quoting = '{"steps":[],"granularity":null}\n\nplan: "a"\n\n```python\nx = 1\n```\nThe answer is 1'
    traces = [
        Trace(problem_id="p", messages=RUN, meta={"steps": [], "granularity": 1}),
        *(
            Trace(problem_id="p", text=text)
            for text in ("", " ", quoting, f"<think>{quoting}</think>{quoting}")
        ),
    ]
    for trace in traces:
        built, cut = cut_trace(trace, name, granularity), CutTrace.of(trace, name, granularity)
        assert cut.model_dump_json() == built.model_dump_json()
        assert len(cut.steps) == len(built.steps)
        assert Trace.model_validate_json(cut.model_dump_json()) == built


def test_spans_of_numpy_are_stored_as_whole_numbers():
    class Halves:
        def segment(self, text):
            return list(zip(numpy.array([0, 2]), numpy.array([2, 4]), strict=True))

    trace = segment_trace(Trace(problem_id="p", text="abcd"), Halves())
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_parts_of_a_run_are_typed():
    trace = segment_trace(Trace(problem_id="p", messages=RUN))
    assert [(step.message, step.part, step.kind) for step in trace.steps] == [
        (2, "reasoning", "reasoning"),
        (2, "reasoning", "reasoning"),
        (2, "content", "plan"),
        (2, "tool_call", "tool_call"),
        (2, "tool_call", "tool_call"),
        (5, "content", "recovery"),
        (5, "tool_call", "tool_call"),
        (7, "content", "final_answer"),
    ]
    assert trace.granularity == "part"
    assert Trace.model_validate_json(trace.model_dump_json()) == trace
    assert segment_trace(trace, segmenter("sentence")).granularity == "part, sentence"


def test_only_the_last_reply_of_a_run_is_its_final_answer():
    def kinds(*messages, ended="stop"):
        trace = segment_trace(Trace(problem_id="p", messages=messages, finish_reason=ended))
        return [step.kind for step in trace.steps]

    user, reply = Message(role="user", content="Yes."), Message(role="assistant", content="Which order?")
    call = Message(role="assistant", tool_calls=(ToolCall(id="a", name="order"),))
    result = Message(role="tool", content="paid", tool_call_id="a")
    assert kinds(user, reply, user, reply, user) == ["reply", "final_answer"]
    assert kinds(user, reply, user, reply, ended="max_tokens") == ["reply", "thought"]
    assert kinds(user, reply, user, call, result) == ["reply", "tool_call"]
    assert kinds(user, call, result, reply, result, reply) == ["tool_call", "thought", "final_answer"]


def test_blocks_give_all_of_a_run_once_in_order():
    trace = segment_trace(Trace(problem_id="p", messages=RUN))
    blocks = list(trace_blocks(trace))
    assert [block.step for block in blocks if block.step is not None] == list(range(8))
    assert [block.kind for block in blocks if block.step is None] == [
        "instruction",
        "instruction",
        "observation",
        "observation",
        "observation",
        "note",
    ]
    assert blocks[-2].text == "reasoning (withheld, 40 tokens)"
    whole = list(trace_blocks(segment_trace(trace, granularity="message")))
    assert [str(block) for block in whole if block.step == 0] == [trace_text(RUN[2])]
    without = list(trace_blocks(trace.model_copy(update={"steps": ()})))
    assert "".join(map(str, without)) == "".join(str(block) for block in blocks)


def trace_text(message):
    return "\n".join([message.reasoning.text, message.content, *map(str, message.tool_calls)])


def seconds(work):
    gc.disable()  # a collection of all that earlier tests left takes longer than the work
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["blank-line", "line", "sentence", "thoughts", "turns", "step-k", "ki"])
@pytest.mark.parametrize("unit", ["\n", " \n", "\n \n", "\r", " "])
def test_white_space_is_passed_once(name, unit):
    cut = segmenter(name)

    def of_size(size):
        return seconds(lambda: cut.segment("x " + unit * (size // len(unit)) + "y"))

    assert of_size(40_000) < 10 * max(of_size(10_000), 0.01)


def test_a_conversation_is_cut_in_linear_time():
    def of_size(count):
        trace = Trace(problem_id="p", messages=(Message(role="assistant", content="a"),) * count)
        return seconds(lambda: segment_trace(trace))

    assert of_size(20_000) < 10 * max(of_size(5_000), 0.02)
