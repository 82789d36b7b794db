"""ThinkPRM: prompts of the authors' code written out again, odds of a plain forward."""

import re
import shutil

import pytest
import torch
from published_checkpoints import TINY, byte_tokenizer, item
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot import load_prm
from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.kinds.generative import GenerativeVerifier
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Message, Problem, Step, Trace

# Published text: DeepSeek-R1-Distill-Qwen (tokenizer_config.json), without its branches for tools.
R1_TEMPLATE = (
    "{% set ns = namespace(system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}"
    "{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}"
    "{%- endfor -%}"
    "{% if add_generation_prompt %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)
BOS, END, USER, ASSISTANT = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
GOOD, BAD = r"\boxed{correct}", r"\boxed{incorrect}"
QUESTION, STEPS = (
    "What is 1 + 1?",
    ["Step 1: One and one:\n  1 + 1 = 2.", "  so 2", "The answer is \\boxed{2}"],
)


def save(directory, *, think="</think>", template=R1_TEMPLATE, words=(" Yes", " No", "Yes", "No")):
    torch.manual_seed(11)
    model = Qwen2ForCausalLM(Qwen2Config(**TINY | {"max_position_embeddings": 1024})).eval()
    model.save_pretrained(directory)
    tokenizer = byte_tokenizer([BOS, END, USER, ASSISTANT], template=template, bos=BOS, pad=END)
    tokenizer.add_special_tokens({"eos_token": END})
    tokenizer.add_tokens([think, *words])
    tokenizer.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    hub = tmp_path_factory.mktemp("hub")
    model = save(hub / "ThinkPRM-1.5B")
    return hub, model, AutoTokenizer.from_pretrained(hub / "ThinkPRM-1.5B")


def chance(model, tokenizer, text, yes, no):
    """P(yes) / (P(yes) + P(no)) after ``text``, by a plain forward of all of it."""
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    pair = logits[tokenizer.convert_tokens_to_ids([yes, no])]
    return float(pair.double().softmax(0)[0])


def thinkprm_prompt(tokenizer, problem, steps):
    """``process_example`` and ``format_verification_cot_for_thinkprm`` of the authors."""
    numbered = [f"Step {n + 1}: " + re.sub(r"Step \d+:", "", step).strip() for n, step in enumerate(steps)]
    instruction = (
        "You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n"
        "{problem}\n\n[Solution]\n\n{solution}\n\nReview and critique each step in the proposed solution "
        "to determine whether each step is correct. "
        "If the solution is incomplete, only verify the provided steps."
    )
    content = instruction.replace("{problem}", problem).replace("{solution}", "\n".join(numbered))
    rows = [{"role": "user", "content": content}]
    shown = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    return shown + "\nLet's verify step by step:"


def test_thinkprm_by_name_asks_and_reads_as_the_authors_do(hub):
    directory, model, tokenizer = hub
    scorer = load_prm(directory / "ThinkPRM-1.5B", chains=2)
    assert isinstance(scorer, GenerativeVerifier)
    assert (scorer.card.family, scorer.card.aggregation, scorer.name) == ("thinkprm", "last", "ThinkPRM-1.5B")
    texts = [f" fine. {GOOD}\nStep 2: {GOOD}\nStep 3: it says \\boxed{{2}}: {GOOD}", f" no: {BAD}"]
    asked = []

    def write(request, sample):
        asked.append(request)
        return texts[sample]

    scripted = GenerativeVerifier(ScriptedPolicy(write), scorer.reader, form=scorer.form, chains=2)
    one = item(QUESTION, STEPS)
    [record] = scripted.score_traces([one])
    prompt = thinkprm_prompt(tokenizer, QUESTION, STEPS)
    expected = [
        chance(model, tokenizer, f"{prompt}{text}\n</think>\nIs the solution correct?", " Yes", " No")
        for text in texts
    ]
    assert record.scores == (0.5, 0.5, pytest.approx(sum(expected) / 2, abs=1e-5))
    assert abs(expected[0] - 0.5) > 0.01
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": asked[0].prompt[0].content}], tokenize=False, add_generation_prompt=True
    )
    assert rendered + asked[0].prefix == prompt


def test_a_random_model_gives_no_scores_but_reasons(hub):
    scorer = load_prm(hub[0] / "ThinkPRM-1.5B")
    scorer.sampling = Sampling(temperature=0.0, max_tokens=8)
    [record] = scorer.score_traces([item("1+1?", ["2", "so 2"])])
    assert record.scores == (None, None)
    assert record.unscored_reason
    assert record.usage.verifier_tokens > 100


def test_families_by_option_and_what_is_refused(hub, tmp_path):
    directory = hub[0] / "ThinkPRM-1.5B"
    shutil.copytree(directory, tmp_path / "mine")
    with pytest.raises(CheckpointError, match=r"plain language model.*'eurus', 'thinkprm'.*family="):
        load_prm(tmp_path / "mine")
    assert load_prm(tmp_path / "mine", family="thinkprm").card.family == "thinkprm"
    with pytest.raises(CheckpointError, match=r"reference=.*of family 'thinkprm'"):
        load_prm(tmp_path / "mine", family="thinkprm", reference="x")
    with pytest.raises(
        CheckpointError, match=r"chains=2 is for generative verifiers; this is of family 'eurus'"
    ):
        load_prm(tmp_path / "mine", family="eurus", reference=directory, chains=2)
    save(tmp_path / "bare", template=None)
    with pytest.raises(CheckpointError, match="lacks a chat template"):
        load_prm(tmp_path / "bare", family="thinkprm")
    problem = Problem(text="p")
    chat = Trace(
        problem_id=problem.id,
        messages=(Message(role="assistant", content="2"),),
        steps=(Step(start=0, end=1, message=0),),
    )
    text = item("p", ["a"])
    scorer = load_prm(directory, family="thinkprm")
    scorer.sampling = Sampling(temperature=0.0, max_tokens=1)
    first, record = scorer.score_traces([text, ProblemTrace(problem=problem, trace=chat)])
    assert (first.trace_id, record.scores) == (text.trace.id, (None,))
    assert "reads solutions that are text" in record.unscored_reason
    bare = Trace(problem_id=problem.id, text="2")
    with pytest.raises(ScoreError, match="segment it first"):
        scorer.score_traces([ProblemTrace(problem=problem, trace=bare)])
