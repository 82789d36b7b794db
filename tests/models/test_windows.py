"""Runs longer than the context: each step is read once, with the task and many messages before it."""

from __future__ import annotations

import json

import pytest
import torch

from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding, windows_of
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.scorer import Scorer
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Message, Problem, StepLabel, ToolCall, Trace
from surefoot.segment import Line, cut_trace, segment_trace
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import build_examples

TEMPLATE = (
    "{% for m in messages %}{{ m.role | length }} = {{ m.content }}"
    "{% for c in m.tool_calls or [] %} {{ c.function.name }}={{ c.function.arguments }}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}9 = {% endif %}"
)
LIMIT = 60
PROBLEM = Problem(text="Start with 7.")


@pytest.fixture(scope="module")
def model(lab_base) -> RewardModel:
    card = CheckpointCard(
        kind="prm", label_source="test", base="tiny", encoding=Encoding(max_length=LIMIT, windows=True)
    )
    model = RewardModel.initialise(lab_base, card)
    model.tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


def run(turns: int, *, long: int | None = None, length: int = 6) -> ProblemTrace:
    messages = [Message(role="user", content=PROBLEM.text)]
    for turn in range(turns):
        call = ToolCall(name="add", arguments=json.dumps({"n": turn}))
        said = "1 + " * length * (20 if turn == long else 1)
        messages.append(Message(role="assistant", content=f"{turn} = {said}1", tool_calls=(call,)))
        messages.append(Message(role="tool", content=f"Now {turn}"))
    trace = Trace(problem_id=PROBLEM.id, messages=tuple(messages))
    return ProblemTrace(problem=PROBLEM, trace=cut_trace(trace))


def alone(model: RewardModel, item: ProblemTrace) -> list[float]:
    (encoded,) = model.encode([item])
    with torch.no_grad():
        hidden = model.trunk(input_ids=torch.tensor([encoded.ids])).last_hidden_state[0]
        return [None if at is None else model.read(hidden[[at]]).item() for at in encoded.positions]


def shortened(item: ProblemTrace, first: int) -> ProblemTrace:
    """The same run without the turns before one, made from its messages."""
    messages = item.trace.messages[:1] + item.trace.messages[1 + 2 * first :]
    return ProblemTrace(
        problem=item.problem, trace=cut_trace(Trace(problem_id=item.problem.id, messages=messages))
    )


def test_each_step_is_read_once_behind_the_task_and_the_latest_messages(model):
    item = run(12)
    (whole,) = model.encode([item])
    assert whole.truncated_steps > 4
    windows = windows_of(model.encode, item, whole, LIMIT)
    assert [step for one in windows for step in one.read] == list(range(len(item.trace.steps)))
    (record,) = Scorer(model, name="m").score_traces([item])
    assert record.unscored_reason is None
    for one in windows:
        turn = one.start // 2
        assert (one.start % 2, one.left_out) == (0, 2 * turn)  # a window begins with a whole message
        assert one.item.trace.messages[0] == item.trace.messages[0]
        expected = alone(model, shortened(item, turn))
        for step in one.read:
            assert record.scores[step] == pytest.approx(expected[step - one.start], abs=1e-5)
            said = f"read without {one.left_out} earlier messages" if one.left_out else None
            assert record.reasons[step] == said
    later = [one.encoded.positions[one.read[0] - one.start] for one in windows[1:]]
    assert min(later) > LIMIT // 3  # much stands before the first new step
    assert record.usage.verifier_tokens <= 3 * len(item.trace.messages) * LIMIT / 4


def test_a_run_that_fits_is_read_as_ever_and_without_windows_a_long_one_is_cut(model):
    items = [run(2), run(12)]
    plain = Scorer(model, name="m", windows=False).score_traces(items)
    windowed = Scorer(model, name="m").score_traces(items)
    assert plain[0] == windowed[0]
    assert None in plain[1].scores
    known = [at for at, score in enumerate(plain[1].scores) if score is not None]
    assert [windowed[1].scores[at] for at in known] == pytest.approx([plain[1].scores[at] for at in known])
    assert not any(windowed[1].reasons[at] for at in known)


def test_a_step_longer_than_the_context_has_no_score_and_the_steps_behind_it_have(model):
    (record,) = Scorer(model, name="m").score_traces([run(8, long=3)])
    missing = [at for at, score in enumerate(record.scores) if score is None]
    assert missing
    assert set(missing) <= {6, 7}  # the text and the call of that message
    assert f"longer than the model's context of {LIMIT} tokens" in record.unscored_reason


def test_a_long_text_is_read_in_windows(model):
    lines = "\n".join(f"{number} + 1 + 1 + 1 + 1 + 1" for number in range(20))
    trace = segment_trace(Trace(problem_id=PROBLEM.id, text=lines), Line())
    item = ProblemTrace(problem=PROBLEM, trace=trace)
    (record,) = Scorer(model, name="m").score_traces([item])
    assert None not in record.scores
    (whole,) = model.encode([item])
    last = windows_of(model.encode, item, whole, LIMIT)[-1]
    rest = lines.split("\n")[last.start :]
    rebuilt = segment_trace(Trace(problem_id=PROBLEM.id, text="\n".join(rest)), Line())
    expected = alone(model, ProblemTrace(problem=PROBLEM, trace=rebuilt))
    assert record.scores[-1] == pytest.approx(expected[-1], abs=1e-5)


def test_training_sees_every_label_once(model):
    item = run(12)
    labels = tuple(
        StepLabel(trace_id=item.trace.id, step=step, kind="correctness", value=(-1) ** step, source="t")
        for step in range(len(item.trace.steps))
    )
    labelled = LabelledTrace(problem=item.problem, trace=item.trace, labels=labels)
    read = {}
    for windows in (False, True):
        encoding = model.card.encoding.model_copy(update={"windows": windows})
        found = build_examples(model.tokenizer, encoding, [labelled], StepTargets())
        read[windows] = [target for one in found.examples for target in one.targets]
        assert all(len(one.ids) <= LIMIT for one in found.examples)
        assert bool(found.dropped) is not windows
    assert read[True] == [1.0, 0.0] * 12
    assert len(read[False]) < 24
    outcome = labelled.trace.model_copy(update={"outcome": True})
    of_run = LabelledTrace(problem=item.problem, trace=outcome, labels=())
    encoding = model.card.encoding
    found = build_examples(model.tokenizer, encoding, [of_run], OutcomeTargets(at="last"))
    assert [one.targets for one in found.examples] == [(1.0,)]


def test_the_checkpoint_says_whether_it_reads_in_windows(model, tmp_path):
    model.save(tmp_path)
    assert load_prm(tmp_path).windows
    assert not load_prm(tmp_path, windows=False).windows
