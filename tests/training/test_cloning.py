"""Behaviour cloning of steps: which tokens are learned, how, and what is left behind."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import TrainingError
from surefoot.models.engine.causal import load_causal
from surefoot.models.lora import Lora
from surefoot.policies.prompts import PromptFormat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import LabelledTrace, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Message, Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace
from surefoot.training.batches import sharing_rows
from surefoot.training.config import SFTConfig
from surefoot.training.examples import Example
from surefoot.training.sft import (
    Demonstration,
    TokenLoss,
    build_cloning_examples,
    clone_steps,
    demonstrate,
    good_steps,
    longest_example,
)

PROMPT = PromptFormat()


def built(tokenizer, items: list[ProblemTrace], shown: list[Demonstration], **settings):
    problems = {item.problem.id: item.problem for item in items}
    return build_cloning_examples(tokenizer, PROMPT, problems, shown, **({"max_length": 128} | settings))


def learned_text(tokenizer, example: Example) -> str:
    return tokenizer.decode([example.ids[at] for at in example.positions])


@pytest.fixture(scope="module")
def examples(lab_items) -> list[Example]:
    return built(build_tokenizer(), lab_items, [demonstrate(item.trace) for item in lab_items]).examples


@given(st.data())
def test_the_tokens_of_the_chosen_steps_are_learned_and_no_other(lab_items, data) -> None:
    tokenizer = build_tokenizer()
    item = data.draw(st.sampled_from(lab_items))
    steps = data.draw(st.sets(st.integers(0, len(item.trace.steps) - 1), min_size=1))
    [example] = built(tokenizer, [item], [demonstrate(item.trace, steps)]).examples
    end = "</s>" if len(item.trace.steps) - 1 in steps else ""
    assert learned_text(tokenizer, example) == "".join(map(item.trace.step_text, sorted(steps))) + end
    whole = f"<s>{item.problem.text}\n{item.trace.text}</s>"
    assert whole.startswith(tokenizer.decode(example.ids))


def test_white_space_after_a_step_is_its_own_with_any_tokenizer(gpt2_base, lab_items) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_base)
    for item in lab_items:
        shown = [demonstrate(item.trace, {step}) for step in range(len(item.trace.steps))]
        texts = [learned_text(tokenizer, one) for one in built(tokenizer, [item], shown).examples]
        assert texts[:-1] == [item.trace.step_text(step) for step in range(len(item.trace.steps) - 1)]
        assert texts[-1] == item.trace.step_text(len(texts) - 1) + "<|endoftext|>"


def test_a_solution_that_was_cut_off_does_not_teach_to_stop(lab_items) -> None:
    trace = lab_items[0].trace
    assert demonstrate(trace).end
    assert not demonstrate(trace.model_copy(update={"finish_reason": "length"})).end
    assert not demonstrate(trace, {0}).end
    end_alone = Demonstration(trace=trace, steps=(), end=True)
    tokenizer = build_tokenizer()
    assert learned_text(tokenizer, built(tokenizer, lab_items, [end_alone]).examples[0]) == "</s>"


def test_of_an_agents_run_its_messages_are_learned_with_their_end(gpt2_base) -> None:
    tokenizer = AutoTokenizer.from_pretrained(gpt2_base)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    problem = Problem(text="7 + 3?")
    messages = tuple(
        Message(role=role, content=text)
        for role, text in (
            ("user", "7 + 3?"),
            ("assistant", "look"),
            ("tool", "0"),
            ("assistant", "It is 0."),
        )
    )
    trace = segment_trace(Trace(problem_id=problem.id, messages=messages), None)
    data = build_cloning_examples(
        tokenizer, PROMPT, {problem.id: problem}, [demonstrate(trace)], max_length=128
    )
    assert learned_text(tokenizer, data.examples[0]) == "look<|endoftext|>It is 0.<|endoftext|>"


def labelled(kind: str, *values: float | None) -> LabelledTrace:
    problem = Problem(text="p")
    text = "".join(f"line {n}\n" for n in range(4))
    trace = segment_trace(Trace(problem_id=problem.id, text=text), Line())
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=step,
            kind=kind,
            value=value,
            source="hand",
            reason=None if value is not None else "why not",
        )
        for step, value in enumerate(values)
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


@pytest.mark.parametrize(
    ("item", "good"),
    [
        (labelled("correctness", 1, 0, -1, None), {0}),
        (labelled("value", 0.6, 0.61, 1, 0), {1, 2}),
        (labelled("advantage", 0.1, 0, -0.5), {0}),
        (labelled("correctness", 1, 1, 1, 1, 1), {0, 1, 2, 3}),
        (labelled("correctness"), set()),
    ],
)
def test_good_steps_are_those_that_their_labels_call_good(item, good) -> None:
    assert good_steps(item, threshold=0.6) == good


def test_raters_who_disagree_make_no_good_step() -> None:
    first, second = labelled("correctness", 1, 1), labelled("correctness", 1, -1)
    assert good_steps(replace(first, labels=first.labels + second.labels)) == {0}


def test_what_cannot_be_learned_is_counted(lab_items) -> None:
    tokenizer, item = build_tokenizer(), lab_items[0]
    empty = Trace(problem_id=item.problem.id, text="")
    stray = item.trace.model_copy(update={"problem_id": "elsewhere"})
    data = built(
        tokenizer,
        [item],
        [demonstrate(item.trace), demonstrate(item.trace, ()), demonstrate(empty), demonstrate(stray)],
    )
    assert len(data.examples) == 1
    assert data.dropped == {"traces without a step to learn": 2, "traces without their problem": 1}
    whole = len(data.examples[0].ids)
    cut = built(tokenizer, [item], [demonstrate(item.trace)], max_length=whole - 1)
    assert cut.dropped == {"ends beyond the longest example": 1}
    assert cut.examples[0].ids == data.examples[0].ids[:-1]
    cut = built(tokenizer, [item], [demonstrate(item.trace)], max_length=whole - 2)
    assert cut.dropped == {"steps beyond the longest example": 1, "ends beyond the longest example": 1}
    with pytest.raises(TrainingError, match="1 traces without a step that fits"):
        built(tokenizer, [item], [demonstrate(item.trace)], max_length=8)
    tokenizer.eos_token = None
    with pytest.raises(TrainingError, match="lacks an end-of-sequence token"):
        built(tokenizer, [item], [demonstrate(item.trace)])


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_the_gradient_is_that_of_the_chosen_tokens_alone(lab_base, lab_items, layout) -> None:
    """Against finite differences of a sum over tokens that is written out here."""
    tokenizer = build_tokenizer()
    shown = [demonstrate(item.trace, {number % 2, 1}) for number, item in enumerate(lab_items[:3])]
    chosen = built(tokenizer, lab_items, shown).examples
    model = AutoModelForCausalLM.from_pretrained(lab_base).double().eval()

    def by_hand() -> float:
        total = 0.0
        with torch.no_grad():
            for item, one in zip(lab_items, shown, strict=False):
                before = "<s>" + item.problem.text + "\n"
                for step in one.steps:
                    text = before + "".join(map(item.trace.step_text, range(step)))
                    ids = tokenizer(text + item.trace.step_text(step), add_special_tokens=False)["input_ids"]
                    start = len(tokenizer(text, add_special_tokens=False)["input_ids"])
                    logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
                    total -= sum(logs[at - 1, ids[at]].item() for at in range(start, len(ids)))
        return total

    reader = TokenLoss(model, SFTConfig(layout=layout))
    with sharing_rows(model.base_model, layout):
        loss = reader(chosen)
        loss.backward()
    assert loss.item() == pytest.approx(by_hand(), rel=1e-5)
    torch.manual_seed(1)
    for name, parameter in list(model.named_parameters())[::5]:
        direction = torch.randn_like(parameter)
        sides = []
        for sign in (1, -2):
            parameter.data += sign * 1e-4 * direction
            sides.append(by_hand())
        parameter.data += 1e-4 * direction
        slope = (sides[0] - sides[1]) / 2e-4
        assert (parameter.grad * direction).sum().item() == pytest.approx(slope, rel=1e-2, abs=0.02), name


def train(base: Path, examples: list[Example], config: SFTConfig, directory: Path, **settings):
    model, tokenizer = load_causal(base)
    return clone_steps(model, tokenizer, examples, config, directory, **settings)


def test_a_few_solutions_can_be_learned_by_heart_and_are_then_written_to_their_end(
    lab_base, examples, lab_items, tmp_path
) -> None:
    log = train(lab_base, examples, SFTConfig(epochs=60, batch_size=6, learning_rate=5e-3), tmp_path / "p")
    assert log.losses[-1] < 0.05 < log.losses[0]
    policy = TransformersPolicy.from_pretrained(tmp_path / "p")
    greedy = Sampling(temperature=0, max_tokens=90)
    requests = [SampleRequest(prompt=PROMPT.render(item.problem), sampling=greedy) for item in lab_items]
    written = [result.completions[0] for result in asyncio.run(policy.sample(requests))]
    same = sum(one.text == item.trace.text for one, item in zip(written, lab_items, strict=True))
    assert same >= 10
    assert all(one.finish_reason == "stop" for one in written)
    assert json.loads((tmp_path / "p" / "training.json").read_text())["tokens"] == log.tokens


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # in peft
@pytest.mark.parametrize("lora", [None, Lora(rank=4, dropout=0.1)])
def test_a_killed_run_goes_on_to_the_same_weights(lab_base, examples, tmp_path, lora) -> None:
    config = SFTConfig(epochs=2, batch_size=4, checkpoint_every=2, lora=lora)
    whole = train(lab_base, examples, config, tmp_path / "whole")

    class KilledError(Exception):
        pass

    def kill(update: int, _total: int, _loss: float) -> None:
        if update == 3:
            raise KilledError

    with pytest.raises(KilledError):
        train(lab_base, examples, config, tmp_path / "killed", progress=kill)
    assert train(lab_base, examples, config, tmp_path / "killed") == whole
    weights = "adapter_model.safetensors" if lora else "model.safetensors"
    first, second = ((tmp_path / name / weights).read_bytes() for name in ("whole", "killed"))
    assert first == second
    assert TransformersPolicy.from_pretrained(tmp_path / "killed").name == "killed"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # in peft
def test_what_cannot_be_trained_is_refused(lab_base, examples, tmp_path) -> None:
    with pytest.raises(ValidationError, match="patience"):
        SFTConfig(patience=1)
    train(lab_base, examples[:2], SFTConfig(epochs=1, lora=Lora(rank=2)), tmp_path / "adapter")
    with pytest.raises(TrainingError, match="merge it into the base"):
        train(tmp_path / "adapter", examples, SFTConfig(), tmp_path / "again")


def test_the_longest_example_is_no_longer_than_the_context(lab_base) -> None:
    model, _ = load_causal(lab_base)
    assert [longest_example(model), longest_example(model, 40), longest_example(model, 999)] == [128, 40, 128]
