"""The transformers policy against the library's own generation, and against itself in other batches."""

from __future__ import annotations

import asyncio
import copy
import threading
from math import sqrt

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import PolicyError
from surefoot.policies.prompts import chat_rows, render_chat
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy, SampleRequest, Sampling
from surefoot.records import Message, Tool, ToolCall, Usage
from surefoot.search.caches import remembering_policy

PROMPTS = (
    "Start with 7. Add 3.\n",
    "Start with 1. Add 2. Subtract 3. Multiply by 4. Add 5. Add 6. Add 7.\n",
    "Start with 9. Multiply by 9. Add 1.\n",
    "Start with 0. Subtract 5. Add 3.\n0 - 5 = 5\n5 + ",
)
LONG = "".join(["Start with 1", *[". Add 1"] * 80, ".\n"])  # 164 tokens, and the context is 128


@pytest.fixture(scope="module")
def llama(lab_base):
    return AutoModelForCausalLM.from_pretrained(lab_base), AutoTokenizer.from_pretrained(lab_base)


@pytest.fixture(scope="module")
def gpt2(gpt2_base):
    return AutoModelForCausalLM.from_pretrained(gpt2_base), AutoTokenizer.from_pretrained(gpt2_base)


@pytest.fixture(scope="module")
def policy(llama):
    return TransformersPolicy(*llama, name="tiny")


def run(policy, *requests):
    return asyncio.run(policy.sample(requests))


def texts(policy, *requests):
    return [[completion.text for completion in result.completions] for result in run(policy, *requests)]


def ask(prompt, *, prefix="", n=1, seed=0, **sampling):
    return SampleRequest(
        prompt=prompt, prefix=prefix, n=n, seed=seed, sampling=Sampling(**({"max_tokens": 12} | sampling))
    )


def generate(model, tokenizer, prompt, tokens):
    """New text and number of new tokens by the library's greedy generation, one prompt at a time."""
    encoded = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(
        input_ids=encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        do_sample=False,
        max_new_tokens=tokens,
        pad_token_id=0,
    )[0]
    read = encoded["input_ids"].shape[1]
    before = tokenizer.decode(ids[:read], skip_special_tokens=True)
    return tokenizer.decode(ids, skip_special_tokens=True)[len(before) :], len(ids) - read


def first_token_chances(model, tokenizer, prompt, temperature=1.0):
    with torch.inference_mode():
        logits = model(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
    return torch.softmax(logits / temperature, dim=-1)


def test_greedy_is_the_librarys_greedy_for_prompts_of_different_lengths(llama, policy):
    results = run(policy, *(ask(prompt, temperature=0, max_tokens=20) for prompt in PROMPTS))
    found = [(c.text, c.tokens) for result in results for c in result.completions]
    assert found == [generate(*llama, prompt, 20) for prompt in PROMPTS]
    assert isinstance(policy, Policy)


@pytest.mark.parametrize("bf16", [False, True])
def test_bf16_is_the_type_of_computing_not_of_weights(llama, bf16):
    model, computed = copy.deepcopy(llama[0]), set()
    model.lm_head.register_forward_hook(lambda _layer, _input, output: computed.add(output.dtype))
    policy = TransformersPolicy(model, llama[1], name="tiny", bf16=bf16)
    for decoding in (policy, remembering_policy(policy, 2**20)):
        run(decoding, *(ask(prompt) for prompt in PROMPTS))
    assert computed == {torch.bfloat16 if bf16 else torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("frozen", [False, True])
def test_no_weight_is_cast_for_every_token(llama, frozen):
    model = copy.deepcopy(llama[0])
    model.model.embed_tokens.requires_grad_(not frozen)
    policy = TransformersPolicy(model, llama[1], name="tiny", bf16=True)
    weight, casts = model.model.layers[0].mlp.up_proj.weight, []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            if operation is torch.ops.aten._to_copy.default and args[0].data_ptr() == weight.data_ptr():
                casts.append(kwargs["dtype"])
            return operation(*args, **(kwargs or {}))

    with Casts():  # in this thread, for the mode holds in no other
        [result] = policy._sample([ask(PROMPTS[0], max_tokens=12)], threading.Event())
    assert (result.completions[0].tokens, casts) == (12, [] if frozen else [torch.bfloat16])


def test_a_tokenizer_without_a_pad_token_works(gpt2):
    policy = TransformersPolicy(*gpt2, name="gpt2")
    results = run(policy, *(ask(prompt, temperature=0) for prompt in PROMPTS))
    found = [(c.text, c.tokens) for result in results for c in result.completions]
    assert found == [generate(*gpt2, prompt, 12) for prompt in PROMPTS]


def test_samples_do_not_depend_on_the_batch(llama):
    requests = [ask(prompt, n=3, seed=seed, max_tokens=15) for prompt in PROMPTS for seed in (0, 1)]
    together = texts(TransformersPolicy(*llama, name="tiny"), *requests)
    for batch_size in (1, 5, 64):
        policy = TransformersPolicy(*llama, name="tiny", batch_size=batch_size)
        assert texts(policy, *requests) == together
    assert [texts(policy, request)[0] for request in requests] == together
    assert texts(policy, *requests[::-1]) == together[::-1]
    assert len({text for samples in together for text in samples}) == 3 * len(requests)


def test_more_samples_begin_with_the_fewer(policy):
    (few,), (many,) = texts(policy, ask(PROMPTS[0], n=2)), texts(policy, ask(PROMPTS[0], n=9))
    assert many[:2] == few


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_first_tokens_come_as_often_as_the_softmax_says(llama, temperature):
    n = 2000
    model, tokenizer = llama
    policy = TransformersPolicy(*llama, name="tiny", batch_size=n)
    (drawn,) = texts(policy, ask(PROMPTS[0], n=n, temperature=temperature, max_tokens=1, seed=5))
    expected: dict[str, float] = {}
    for token, chance in enumerate(first_token_chances(model, tokenizer, PROMPTS[0], temperature).tolist()):
        text = tokenizer.decode([token], skip_special_tokens=True)
        expected[text] = expected.get(text, 0.0) + chance
    assert set(drawn) <= set(expected)
    for text, chance in expected.items():
        assert abs(drawn.count(text) - n * chance) <= 4 * sqrt(n * chance * (1 - chance)) + 1


def test_top_p_keeps_the_smallest_set_that_reaches_it(llama, policy):
    model, tokenizer = llama
    ordered, order = first_token_chances(model, tokenizer, PROMPTS[0]).sort(descending=True)
    size = int((ordered.cumsum(0) < 0.4).sum()) + 1
    inside = {tokenizer.decode([token], skip_special_tokens=True) for token in order[:size].tolist()}
    (drawn,) = texts(policy, ask(PROMPTS[0], n=300, top_p=0.4, max_tokens=1))
    assert set(drawn) == inside
    assert len(inside) > 1
    nearly_greedy, greedy = ask(PROMPTS[1], top_p=1e-6), ask(PROMPTS[1], temperature=0)
    assert texts(policy, nearly_greedy) == texts(policy, greedy)


@pytest.mark.parametrize("stop", [("\n",), ("5", "Now "), ("Add",), (" = 7", " + 1", "\n2")])
def test_text_ends_right_after_the_first_stop_text(policy, stop):
    (free,), (stopped,) = (
        run(policy, ask(PROMPTS[0], n=60, max_tokens=25, stop=marks)) for marks in ((), stop)
    )
    cut_short = 0
    for whole, part in zip(free.completions, stopped.completions, strict=True):
        ends = [whole.text.index(mark) + len(mark) for mark in stop if mark in whole.text]
        cut_short += bool(ends)
        assert part.text == whole.text[: min(ends, default=None)]
        assert part.finish_reason == ("stop" if ends else whole.finish_reason)
        assert part.tokens <= whole.tokens
    assert cut_short > 3


def test_stop_texts_in_the_prompt_do_not_count(policy):
    prefix = "7 + 3 = 0\n"  # two tokens cannot write the stop text anew
    free, stopped = (ask(PROMPTS[0], prefix=prefix, n=5, stop=s, max_tokens=2) for s in ((), ("7 + 3",)))
    assert run(policy, stopped) == run(policy, free)


def test_token_limits(policy):
    (result,) = run(policy, ask(PROMPTS[0], n=20, max_tokens=4))
    reasons = {(c.tokens == 4, c.finish_reason) for c in result.completions}
    assert (True, "length") in reasons
    assert all(c.tokens == 4 for c in result.completions if c.finish_reason == "length")
    nothing, other = run(policy, ask(PROMPTS[0], max_tokens=0), ask(PROMPTS[0], max_tokens=4))
    assert [(c.text, c.tokens, c.finish_reason) for c in nothing.completions] == [("", 0, "length")]
    assert other.completions == result.completions[:1]


def test_a_prompt_beyond_the_context_fails_alone(policy):
    good, bad, last = run(policy, ask(PROMPTS[0]), ask(LONG), ask(PROMPTS[1]))
    assert bad.completions == ()
    assert bad.usage == Usage()
    assert bad.error == "policy: the prompt has 164 tokens, the model's context 128"
    assert [good, last] == run(policy, ask(PROMPTS[0]), ask(PROMPTS[1]))
    assert good.error is None


@pytest.mark.parametrize("family", ["lab_base", "gpt2_base"])
def test_completions_end_where_the_context_does(family, request):
    path = request.getfixturevalue(family)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    model.generation_config.eos_token_id = 10**6  # never drawn, so that nothing ends early
    policy = TransformersPolicy(model, tokenizer, name="tiny")
    ids = tokenizer(PROMPTS[1] * 20)["input_ids"][:126]
    near_full = tokenizer.decode(ids, skip_special_tokens=True)
    room = 128 - len(tokenizer(near_full)["input_ids"])
    # one row fills up early and stays in the batch, as most of the others go on
    long, *others = run(policy, ask(near_full, max_tokens=30), *(ask(p, max_tokens=30) for p in PROMPTS[:4]))
    assert [(c.tokens, c.finish_reason) for c in long.completions] == [(room, "length")]
    assert others == run(policy, *(ask(p, max_tokens=30) for p in PROMPTS[:4]))


def test_samples_share_the_reading_of_their_prompt(llama, policy):
    read = len(llama[1](PROMPTS[0])["input_ids"])
    for n in (1, 7):
        (result,) = run(policy, ask(PROMPTS[0], n=n))
        written = sum(completion.tokens for completion in result.completions)
        assert result.usage == Usage(prompt_tokens=read, completion_tokens=written, calls=1)


def test_a_prefix_is_the_end_of_the_prompt(policy):
    prefix = "7 + 3 = 0\n"
    whole = run(policy, ask(PROMPTS[0] + prefix, n=4))
    assert run(policy, ask(PROMPTS[0], prefix=prefix, n=4)) == whole


def test_messages_go_through_the_chat_template(llama, policy):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}Now 3\n{% endif %}"
    )
    chat = TransformersPolicy(llama[0], tokenizer, name="chat")
    messages = (Message(role="user", content=PROMPTS[0].strip()),)
    plain = run(policy, ask(PROMPTS[0] + "Now 3\n7 + ", n=3))
    assert run(chat, ask(messages, prefix="7 + ", n=3)) == plain
    with pytest.raises(PolicyError, match="lacks a chat template"):
        run(policy, ask(messages))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, "oops", '"x"', ""])
def test_arguments_and_schemas_of_any_text_are_rendered(text):
    """What a model or a file says of a tool need not be JSON, and may be deep."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for tool in tools or [] %}{{ tool.function.name }}{{ tool.function.parameters.type }}{% endfor %}"
        "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.reasoning_content or '' }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
        "{% endfor %}"
    )
    messages = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="", tool_calls=(ToolCall(name="add", arguments=text),)),
    )
    tools = (Tool(name="weather", parameters=text),)
    shown = render_chat(tokenizer, messages, tools=tools)
    assert "weatherobject" in shown
    assert f"add{text}" in shown


def test_templates_see_only_the_fields_a_message_has():
    call = ToolCall(id="c1", name="add", arguments='{"a": 2}')
    rows = chat_rows(
        (
            Message(role="user", content="Hi"),
            Message(role="assistant", tool_calls=(call, ToolCall(name="add", arguments="{oops"))),
            Message(role="tool", content="4", tool_call_id="c1"),
        )
    )
    assert rows == [
        {"role": "user", "content": "Hi"},  # Llama 3.1 asks for "'tool_calls' in message"
        {
            "role": "assistant",
            "content": "",  # other templates add it to text
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}},
                {"type": "function", "function": {"name": "add", "arguments": "{oops"}},
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]


def test_a_model_may_have_more_ids_than_its_tokenizer():
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4 * len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=64,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    policy = TransformersPolicy(model, tokenizer, name="padded")
    (result,) = run(policy, ask(PROMPTS[0], n=20, stop=("\n",)))
    assert all(c.text.endswith("\n") or "\n" not in c.text for c in result.completions)


def test_loading_from_a_directory(lab_base, policy, tmp_path):
    loaded = TransformersPolicy.from_pretrained(lab_base)
    assert loaded.name == lab_base.name
    assert run(loaded, ask(PROMPTS[0], n=2)) == run(policy, ask(PROMPTS[0], n=2))
    with pytest.raises(PolicyError, match="could not be loaded"):
        TransformersPolicy.from_pretrained(tmp_path)
