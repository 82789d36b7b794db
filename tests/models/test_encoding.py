import re
import unicodedata

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_python import PreTrainedTokenizer

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding, encode_traces
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.models.scorer import Scorer
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Attachment, Message, Problem, Reasoning, Step, StepLabel, Tool, ToolCall, Trace
from surefoot.segment import BlankLine, Line, segment_trace
from surefoot.training.config import StepTargets
from surefoot.training.examples import build_examples

CHATML = (
    "{% for m in messages %}"
    "{{ '<s>' + m['role'] + '\n' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}"
    "{{ '<call>' + c['function']['name'] + ' ' + (c['function']['arguments'] | tojson) }}{% endfor %}"
    "{{ '</s>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
STRICT = "{% for m in messages %}{% if 'tool_calls' in m and m['tool_calls'] | length != 1 %}" + (
    "{{ raise_exception('one tool call at a time') }}{% endif %}{{ m['role'] + ': ' + m['content'] + '\n' }}"
    "{% endfor %}"
)


def text_item(problem: str, solution: str, segmenter=None) -> ProblemTrace:
    asked = Problem(text=problem)
    return ProblemTrace(
        problem=asked,
        trace=segment_trace(Trace(problem_id=asked.id, text=solution), segmenter or Line()),
    )


def chat_item(*messages: Message) -> ProblemTrace:
    asked = Problem(text="q")
    trace = segment_trace(Trace(problem_id=asked.id, messages=messages), None)
    return ProblemTrace(problem=asked, trace=trace)


@pytest.fixture
def bpe(gpt2_base) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(gpt2_base)


def test_golden_ids_and_positions_of_a_lab_trace():
    item = text_item("Start with 7. Add 3.", "7 + 3 = 0\nAnswer: 0\n")
    [encoded] = encode_traces(build_tokenizer(), Encoding(), [item])
    #            <s> Start 7 .Add 3 .\n      7  +   3  =   0  \n Answer 0 \n
    assert encoded.ids == (1, 14, 11, 15, 7, 18, 11, 19, 7, 22, 4, 23, 25, 4, 23)
    assert encoded.positions == (10, 13)  # the digits, not the line ends after them
    assert encoded.truncated_steps == 0


def test_training_and_scoring_read_the_same_tokens(lab_base, lab_items):
    card = CheckpointCard(kind="prm", label_source="test", base="lab")
    model = RewardModel.initialise(lab_base, card)
    labelled = [
        LabelledTrace(
            problem=item.problem,
            trace=item.trace,
            labels=tuple(
                StepLabel(trace_id=item.trace.id, step=step, kind="value", value=step % 2, source="t")
                for step in range(len(item.trace.steps))
            ),
        )
        for item in lab_items
    ]
    examples = build_examples(model.tokenizer, model.card.encoding, labelled, StepTargets()).examples
    encoded = model.encode(lab_items)  # what every scorer reads
    assert [(trace.ids, trace.positions) for trace in encoded] == [(x.ids, x.positions) for x in examples]


def test_byte_level_tokens_split_characters_and_still_end_where_the_step_does(bpe):
    item = text_item("Is it naïve?", "So 2 ≤ 3 →\n\nyes ☃\n\n", BlankLine())
    [encoded] = encode_traces(bpe, Encoding(), [item])
    whole = "Is it naïve?\nSo 2 ≤ 3 →\n\nyes ☃\n\n"
    assert bpe.decode(encoded.ids) == whole
    for position, end in zip(encoded.positions, ("→", "☃"), strict=True):
        assert bpe.decode(encoded.ids[: position + 1]).endswith(end)


def test_chat_encoding_is_the_templates_text_and_the_solution(bpe):
    bpe.chat_template = CHATML
    encoding = Encoding(template="{problem}!", chat=True, system="be brief")
    item = text_item("2 + 2?", "four\nso 4\n")
    [encoded] = encode_traces(bpe, encoding, [item])
    before = bpe.apply_chat_template(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2 + 2?!"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert before.endswith("<s>assistant\n")
    text = before + "four\nso 4\n"
    assert list(encoded.ids) == bpe(text, add_special_tokens=False)["input_ids"]
    assert [bpe.decode(encoded.ids[: at + 1]) for at in encoded.positions] == [
        before + "four",
        before + "four\nso 4",
    ]


def test_a_template_that_writes_the_beginning_of_text_does_not_get_it_twice():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ '<s>' }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = chat_item(Message(role="user", content="Start with 7"), Message(role="assistant", content=" + 3"))
    plain = text_item("Start with 7. Add 3.", "7 + 3 = 0\n")
    as_chat, as_text = encode_traces(tokenizer, Encoding(), [chat, plain])
    assert as_chat.ids.count(1) == as_text.ids.count(1) == 1


def test_a_run_with_tools_has_one_position_for_each_assistant_message(bpe):
    bpe.chat_template = CHATML
    messages = (
        Message(role="user", content="What is 7 + 3?"),
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="add", arguments='{"a": 7, "b": 3}'),)),
        Message(role="tool", content="10", tool_call_id="c"),
        Message(role="assistant", content="It is 10."),
    )
    [encoded] = encode_traces(bpe, Encoding(chat=True), [chat_item(*messages)])
    read = [bpe.decode(encoded.ids[: at + 1]) for at in encoded.positions]
    assert read == [
        '<s>user\nWhat is 7 + 3?</s>\n<s>assistant\n<call>add {"a": 7, "b": 3}</s>',
        '<s>user\nWhat is 7 + 3?</s>\n<s>assistant\n<call>add {"a": 7, "b": 3}</s>\n'
        "<s>tool\n10</s>\n<s>assistant\nIt is 10.</s>",
    ]


def test_messages_without_calls_have_no_tool_calls_key(bpe):
    bpe.chat_template = STRICT
    item = chat_item(Message(role="user", content="hi"), Message(role="assistant", content="ho"))
    [encoded] = encode_traces(bpe, Encoding(chat=True), [item])
    assert bpe.decode(encoded.ids) == "user: hi\nassistant: ho\n"


def test_arguments_that_are_no_json_object_stay_as_written(bpe):
    bpe.chat_template = "{% for m in messages %}{% for c in m['tool_calls'] or [] %}" + (
        "{{ c['function']['name'] + c['function']['arguments'] | string }}{% endfor %}"
        "{{ m['content'] }}{% endfor %}"
    )
    call = ToolCall(name="run", arguments="{broken")
    item = chat_item(Message(role="user", content="go "), Message(role="assistant", tool_calls=(call,)))
    [encoded] = encode_traces(bpe, Encoding(chat=True), [item])
    assert bpe.decode(encoded.ids) == "go run{broken"


def test_a_template_that_rewrites_earlier_messages_is_refused(bpe):
    bpe.chat_template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    item = chat_item(
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
        Message(role="assistant", content="d"),
    )
    [encoded] = encode_traces(bpe, Encoding(chat=True), [item])
    assert encoded.positions == (None, None)
    assert "rewrites earlier messages" in encoded.unscored_reason(100)


def test_steps_beyond_the_context_have_no_position():
    item = text_item("Start with 7. Add 3.", "7 + 3 = 0\nAnswer: 0\n")
    [encoded] = encode_traces(build_tokenizer(), Encoding(max_length=12), [item])
    assert len(encoded.ids) == 12
    assert encoded.positions == (10, None)
    assert encoded.truncated_steps == 1


def test_order_is_kept_and_nothing_gives_nothing(lab_items):
    tokenizer = build_tokenizer()
    together = encode_traces(tokenizer, Encoding(), lab_items)
    assert together == [encode_traces(tokenizer, Encoding(), [item])[0] for item in lab_items]
    assert encode_traces(tokenizer, Encoding(), []) == []


class Letters(PreTrainedTokenizer):
    """A tokenizer in plain Python, which knows no character offsets."""

    @property
    def vocab_size(self):
        return 128

    def get_vocab(self):
        return {chr(code): code for code in range(128)}

    def _tokenize(self, text, **_):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(ScoreError, match="fast"):
        encode_traces(Letters(), Encoding(), [text_item("p", "s")])


def test_a_trace_without_steps_is_named():
    asked = Problem(text="p")
    empty = ProblemTrace(problem=asked, trace=Trace(problem_id=asked.id, text=""))
    with pytest.raises(ScoreError, match=empty.trace.id):
        encode_traces(build_tokenizer(), Encoding(), [empty])


def test_chat_needs_a_template():
    with pytest.raises(ScoreError, match="lacks a chat template"):
        encode_traces(build_tokenizer(), Encoding(chat=True), [text_item("p", "s")])


def test_without_a_template_conversations_are_refused_and_texts_read():
    text = text_item("1 + 1", "2")
    message = Message(role="assistant", content="s")
    step = Step(start=0, end=1, message=0)
    chat = ProblemTrace(
        problem=text.problem,
        trace=Trace(problem_id=text.problem.id, messages=(message,), steps=(step,)),
    )
    refused, read = encode_traces(build_tokenizer(), Encoding(), [chat, text])
    assert "lacks a chat template" in (refused.unscored_reason(99) or "")
    assert refused.positions == (None,)
    assert read.unscored_reason(99) is None


@pytest.mark.parametrize("bad", [{"template": "no place"}, {"system": "s"}, {"max_length": 3}, {"odd": 1}])
def test_an_encoding_that_cannot_work_is_refused(bad):
    with pytest.raises(ValueError, match="validation error"):
        Encoding(**bad)


def marked_tokenizer(bpe) -> PreTrainedTokenizerFast:
    bpe.add_special_tokens({"additional_special_tokens": ["<|end|>", "<extra_0>"]})
    return bpe


@pytest.mark.parametrize("marker", [None, "<extra_0>", " ки"])
@pytest.mark.parametrize("chat", [False, True])
def test_special_tokens_and_the_marker_in_a_text_are_read_as_text(bpe, marker, chat):
    tokenizer = marked_tokenizer(bpe)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    encoding = Encoding(marker=marker, chat=chat)
    item = text_item("1<|end|> + 1?", "a<extra_0>b<|end|>\n<extra_0> ки c ки\n<|e")
    [encoded] = encode_traces(tokenizer, encoding, [item])
    ki = "к и" if marker == " ки" else "ки"
    question = "1< |end|> + 1?\n" + "<|end|>" * chat
    steps = ["a< extra_0>b< |end|>", f"< extra_0> {ki} c {ki}", "<|e"]
    mark = marker or ""
    whole = question + "".join(
        f"{step}{end}{mark}" for step, end in zip(steps, ["\n", "\n", ""], strict=True)
    )
    assert tokenizer.decode(encoded.ids) == whole
    assert encoded.ids == tuple(tokenizer(whole, add_special_tokens=not chat)["input_ids"])
    special = tokenizer.convert_tokens_to_ids(["<|end|>", "<extra_0>"])
    assert [encoded.ids.count(token) for token in special] == [chat, 3 * (marker == "<extra_0>")]
    reads = [tokenizer.decode(encoded.ids[: at + 1]) for at in encoded.positions]
    ends = [end if marker else "" for end in ("\n", "\n", "")]
    assert [read.rsplit(step, 1)[1] for read, step in zip(reads, steps, strict=True)] == [
        end + mark for end in ends
    ]


def test_training_breaks_the_same_tokens(bpe):
    tokenizer = marked_tokenizer(bpe)
    item = text_item("p", "a<|end|>\nb")
    label = StepLabel(trace_id=item.trace.id, step=0, kind="value", value=0.5, source="t")
    labelled = LabelledTrace(problem=item.problem, trace=item.trace, labels=(label,))
    encoding = Encoding(marker="<extra_0>")
    [example] = build_examples(tokenizer, encoding, [labelled], StepTargets()).examples
    assert example.ids == encode_traces(tokenizer, encoding, [item])[0].ids
    assert tokenizer.decode(example.ids) == "p\na< |end|>\n<extra_0>b<extra_0>"


DECOMPOSED = "It is a cafe\u0301"


@pytest.mark.parametrize("solution", [DECOMPOSED, DECOMPOSED + "\n", "na\u00efve\n" + DECOMPOSED])
def test_a_trace_may_end_in_a_character_that_the_tokenizer_composes(bpe, solution):
    bpe.backend_tokenizer.normalizer = normalizers.NFC()
    [encoded] = encode_traces(bpe, Encoding(), [text_item("p", solution)])
    assert encoded.unscored_reason(2048) is None
    composed = unicodedata.normalize("NFC", "p\n" + solution.rstrip())
    assert bpe.decode(encoded.ids[: encoded.positions[-1] + 1]) == composed
    cut = Encoding(max_length=max(8, encoded.positions[-1]))
    [short] = encode_traces(bpe, cut, [text_item("p", solution)])
    assert short.positions[-1] is None
    assert short.unscored_reason(cut.max_length) == (
        f"1 steps lie beyond the model's context of {cut.max_length} tokens"
    )


def test_a_step_without_tokens_is_not_beyond_the_context(bpe):
    bpe.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    [encoded] = encode_traces(bpe, Encoding(), [text_item("p", "a\n\u200b\n\u200b")])
    assert encoded.positions[1:] == (None, None)
    reason = "2 steps are empty: the tokenizer drops all of their text"
    assert encoded.unscored_reason(2048) == encoded.unscored_reason(len(encoded.ids)) == reason
    item = text_item("p", "a\n\u200b\nand so on, much longer than that\n")
    [cut] = encode_traces(bpe, Encoding(max_length=8), [item])
    assert cut.unscored_reason(8) == (
        "1 steps lie beyond the model's context of 8 tokens; "
        "1 steps are empty: the tokenizer drops all of their text"
    )


def test_implicit_rewards_give_the_same_reason(gpt2_base):
    model = ImplicitPRM.initialise(gpt2_base)
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    [record] = model.score_traces([text_item("p", "a\n\u200b\nb")])
    assert record.scores[1] is None
    assert None not in (record.scores[0], record.scores[2])
    assert record.unscored_reason == "1 steps are empty: the tokenizer drops all of their text"


HERMES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{{ m.content | trim }}{% for c in m.tool_calls or [] %}"
    "{{ '\n<tool_call>\n' + ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) }}"
    "{{ '\n</tool_call>' }}{% endfor %}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_TOOLS = (  # as SmolLM2's: it writes role and content and nothing else
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (  # as Llama 2's and Gemma's: users and assistants in turn, no tools
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '[' + m['role'] + '] ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
)
DROPS_THOUGHTS = (  # as Qwen3's and DeepSeek-R1's: what was thought in earlier turns is cut out
    "{% for m in messages %}{{ '<' + m['role'] + '>' }}{% if m['role'] == 'assistant' and not loop.last %}"
    "{{ m['content'].split('</think>')[-1] }}{% else %}{% if m.reasoning_content %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m['content'] }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
MISTRAL = (  # all calls of a message in one list
    "{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] ' + m.content + '[/TOOL_RESULTS]' }}"
    "{% elif m.tool_calls is defined and m.tool_calls %}{{ ' ' + m.content + '[TOOL_CALLS] [' }}"
    "{% for c in m.tool_calls %}{{ c.function | tojson }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}"
    "{{ ']</s>' }}{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "hermes": HERMES,
    "no-tools": NO_TOOLS,
    "alternating": ALTERNATING,
    "drops-thoughts": DROPS_THOUGHTS,
    "mistral": MISTRAL,
}


def agent_run(city: str = "Oslo", reason: str = "The weather first.") -> tuple[Message, ...]:
    return (
        Message(role="user", content="Rain?"),
        Message(
            role="assistant",
            content="  I look both up.",
            reasoning=Reasoning(text=f"{reason}\n\nThen the date."),
            tool_calls=(
                ToolCall(id="call00001", name="weather", arguments=f'{{"city": "{city}"}}'),
                ToolCall(id="call00002", name="today", arguments="{}"),
            ),
        ),
        Message(role="tool", content="dry", tool_call_id="call00001"),
        Message(role="tool", content="May 5", tool_call_id="call00002"),
        Message(role="assistant", content="No <think>sure?</think> rain."),
    )


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "alternating"])
def test_the_tokens_of_a_step_contain_its_text_and_its_call(bpe, name):
    bpe.chat_template = TEMPLATES[name]
    item = chat_item(*agent_run())
    [encoded] = encode_traces(bpe, Encoding(chat=True), [item])
    assert encoded.refused is None
    kinds = [step.kind for step in item.trace.steps]
    last = ["thought", "reasoning", "final_answer"]
    assert kinds == ["reasoning", "reasoning", "thought", "tool_call", "tool_call", *last]
    texts = [bpe.decode(encoded.ids[first:end]) for first, end in encoded.written]
    for index, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        said = item.trace.step_text(index).strip().replace("<think>", "").replace("</think>", "")
        if kind != "tool_call":
            assert said in re.sub(r"[<\[]/?think[>\]]", "", text)
        else:
            [call] = item.trace.calls_of(index)
            assert call.name in text
            assert "Oslo" in text or index == 4
    assert "weather" not in texts[4]
    assert "today" not in texts[3]
    assert list(encoded.positions) == sorted(set(encoded.positions))


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "alternating"])
def test_two_runs_that_differ_in_a_call_or_a_thought_have_different_tokens(bpe, name):
    bpe.chat_template = TEMPLATES[name]
    items = [
        chat_item(*agent_run()),
        chat_item(*agent_run(city="Rome")),
        chat_item(*agent_run(reason="No weather at all.")),
    ]
    encoded = encode_traces(bpe, Encoding(chat=True), items)
    assert len({one.ids for one in encoded}) == 3


def test_a_template_that_cannot_write_the_conversation_refuses_the_trace_alone(bpe):
    bpe.chat_template = ALTERNATING
    plain = chat_item(Message(role="user", content="hi"), Message(role="assistant", content="ho"))
    encoded = encode_traces(bpe, Encoding(chat=True), [chat_item(*agent_run()), plain])
    assert "roles must alternate" in encoded[0].unscored_reason(100)
    assert encoded[1].unscored_reason(100) is None
    assert bpe.decode(encoded[1].ids) == "[user] hi\n[assistant] ho\n"


def test_images_are_refused_with_a_reason(bpe):
    bpe.chat_template = CHATML
    image = Attachment(kind="image", uri="cat.png", sha256="0" * 64)
    item = chat_item(
        Message(role="user", content="What is it?", attachments=(image,)),
        Message(role="assistant", content="A cat."),
    )
    [encoded] = encode_traces(bpe, Encoding(chat=True), [item])
    assert "attachment (image)" in encoded.unscored_reason(100)


def test_whole_messages_are_steps_at_the_granularity_of_prm800k(bpe):
    bpe.chat_template = HERMES
    asked = Problem(text="q")
    trace = segment_trace(Trace(problem_id=asked.id, messages=agent_run()), granularity="message")
    [encoded] = encode_traces(bpe, Encoding(chat=True), [ProblemTrace(problem=asked, trace=trace)])
    assert len(trace.steps) == 2
    first, second = (bpe.decode(encoded.ids[a:b]) for a, b in encoded.written)
    assert all(text in first for text in ("The weather first.", "I look both up.", "Oslo", "today"))
    assert "rain." in second


def test_tools_are_described_where_the_template_can(bpe):
    bpe.chat_template = (
        "{% if tools %}{% for t in tools %}{{ t.function.name + ': ' + t.function.description + '\n' }}"
        "{% endfor %}{% endif %}" + NO_TOOLS
    )
    asked = Problem(text="q")
    messages = (Message(role="user", content="hi"), Message(role="assistant", content="ho"))
    trace = Trace(problem_id=asked.id, messages=messages, tools=(Tool(name="weather", description="rain"),))
    [encoded] = encode_traces(
        bpe, Encoding(chat=True), [ProblemTrace(problem=asked, trace=segment_trace(trace))]
    )
    assert bpe.decode(encoded.ids).startswith("weather: rain\n<|im_start|>user")


def test_special_tokens_in_a_run_are_read_as_text(bpe):
    tokenizer = marked_tokenizer(bpe)
    tokenizer.chat_template = HERMES
    run = list(agent_run(city="O<|end|>slo", reason="Hm.<|end|>"))
    run[1] = run[1].model_copy(update={"content": "One.<|end|>\nTwo."})
    run[2] = run[2].model_copy(update={"content": "<|end|>dry"})
    asked = Problem(text="q")
    trace = segment_trace(Trace(problem_id=asked.id, messages=tuple(run)), Line())
    [encoded] = encode_traces(tokenizer, Encoding(chat=True), [ProblemTrace(problem=asked, trace=trace)])
    assert tokenizer.convert_tokens_to_ids("<|end|>") not in encoded.ids
    texts = [tokenizer.decode(encoded.ids[first:end]).strip() for first, end in encoded.written]
    assert [one for one in texts if "< |end|>" in one or one == "Two."] == [
        texts[0],
        "One.< |end|>",
        "Two.",
        texts[4],
    ]
    assert texts[0].startswith("<think>\nHm.< |end|>")
    assert "O< |end|>slo" in texts[4]


def test_what_cannot_be_shown_has_no_score_and_the_rest_of_the_call_has(gpt2_base):
    image = Attachment(kind="image", uri="cat.png")
    seen = chat_item(Message(role="user", content="hi"), Message(role="assistant", content="ho"))
    hidden = chat_item(
        Message(role="user", content="hi", attachments=(image,)), Message(role="assistant", content="ho")
    )
    prm = RewardModel.initialise(gpt2_base, CheckpointCard(kind="prm", label_source="test", base="gpt2"))
    implicit = ImplicitPRM.initialise(gpt2_base)
    for model, scorer in ((prm, Scorer(prm, name="prm")), (implicit, implicit)):
        model.tokenizer.chat_template = NO_TOOLS
        first, second = scorer.score_traces([hidden, seen])
        assert (first.scores, second.unscored_reason) == ((None,), None)
        assert "attachment (image)" in first.unscored_reason
