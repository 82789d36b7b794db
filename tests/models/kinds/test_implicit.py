import json
import math
import shutil

import pytest
import torch

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.engine.causal import require_plain_head, token_statistics
from surefoot.models.kinds.implicit import ImplicitPRM, counted_tokens, implicit_scores, response_of
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Message, Problem, Step, Trace
from surefoot.segment import Line, segment_trace


@pytest.fixture
def prm(lab_base) -> ImplicitPRM:
    return shaken(ImplicitPRM.initialise(lab_base))


def shaken(model: ImplicitPRM) -> ImplicitPRM:
    """``model`` with noise on its weights, so that it differs from its reference."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def straight(model: ImplicitPRM, item: ProblemTrace) -> list[float]:
    """By the definition: whole logits, log-softmax, one trace at a time."""
    (trace,) = model.encode([item])
    ids = torch.tensor([trace.ids])
    with torch.no_grad():
        ratio = model.policy(ids).logits.double().log_softmax(-1)
        ratio = ratio - model.reference(ids).logits.double().log_softmax(-1)
    tokens = ratio[0, :-1].gather(1, ids[0, 1:, None])[:, 0]  # of tokens 1, 2, ...
    ends = [position for position in trace.positions if position is not None]
    starts = [trace.starts[0], *(end + 1 for end in ends[:-1])]
    return [
        model.settings.beta * float(tokens[start - 1 : end].sum())
        for start, end in zip(starts, ends, strict=True)
    ]


@pytest.mark.parametrize("base", ["lab_base", "gpt2_base"])
def test_rewards_are_those_of_the_definition(request, lab_items, base):
    model = shaken(ImplicitPRM.initialise(request.getfixturevalue(base)))
    for item, found in zip(lab_items, model.rewards(lab_items), strict=True):
        expected = straight(model, item)
        assert found.steps[: len(expected)] == pytest.approx(expected, abs=1e-4)
        assert max(map(abs, expected)) > 0.01


def test_without_training_every_reward_is_zero(lab_base, lab_items):
    model = ImplicitPRM.initialise(lab_base)
    for found in model.rewards(lab_items):
        assert set(found.steps) == {0.0}
    assert {score for record in model.score_traces(lab_items) for score in record.scores} == {0.5}


def test_step_rewards_add_up_to_the_response_however_it_is_cut(prm, lab_items):
    texts = [item.trace.text for item in lab_items]
    whole = [
        ProblemTrace(
            problem=item.problem,
            trace=Trace(problem_id="p", text=text, steps=(Step(start=0, end=len(text)),)),
        )
        for item, text in zip(lab_items, texts, strict=True)
    ]
    fine, coarse = prm.rewards(lab_items), prm.rewards(whole)
    for by_line, in_one in zip(fine, coarse, strict=True):
        assert math.fsum(by_line.steps) == pytest.approx(in_one.steps[0], abs=1e-5)
    assert any(abs(min(a.steps) - min(b.steps)) > 0.01 for a, b in zip(fine, coarse, strict=True))


def test_later_steps_do_not_alter_earlier_rewards(prm, lab_items):
    item = lab_items[0]
    short = item.trace.prefix(2)
    cut = segment_trace(Trace(problem_id=item.problem.id, text=short), Line())
    full, part = prm.rewards([item, ProblemTrace(problem=item.problem, trace=cut)])
    assert part.steps == pytest.approx(full.steps[:2], abs=1e-6)
    alone = prm.rewards([ProblemTrace(problem=item.problem, trace=cut)])[0]
    assert alone.steps == pytest.approx(full.steps[:2], abs=1e-5)


def test_scores_are_sigmoids():
    rewards = (0.5, -2.0, None)
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    assert implicit_scores(rewards) == (pytest.approx(sigmoid(0.5)), pytest.approx(sigmoid(-2)), None)
    assert implicit_scores((-5000.0, 9000.0)) == (0.0, 1.0)


def test_the_card_says_what_the_scores_are(prm, lab_items):
    assert isinstance(prm, StepScorer)
    card = prm.card
    assert (card.family, card.aggregation, card.score_means) == ("implicit", "min", "advantage")
    [record], [found] = prm.score_traces(lab_items[:1]), prm.rewards(lab_items[:1])
    assert prm.aggregate(record) == pytest.approx(1 / (1 + math.exp(-min(found.steps))))


def test_common_beginnings_are_read_once(prm, lab_items):
    one = prm.rewards(lab_items[:1])[0].tokens
    (trace,) = prm.encode(lab_items[:1])
    assert one == 2 * (max(trace.positions) + 1)  # by model and reference
    assert sum(found.tokens for found in prm.rewards([lab_items[0], lab_items[0]])) == one


@pytest.mark.parametrize("with_reference", [True, False])
def test_save_and_load_give_equal_scores(prm, lab_items, tmp_path, with_reference):
    prm.save(tmp_path / "iprm", with_reference=with_reference)
    loaded = ImplicitPRM.load(tmp_path / "iprm")
    assert loaded.name == "iprm"
    assert (tmp_path / "iprm" / "reference").exists() == with_reference
    before = [record.scores for record in prm.score_traces(lab_items)]
    assert [record.scores for record in loaded.score_traces(lab_items)] == before
    loaded.save(tmp_path / "again")
    assert [r.scores for r in ImplicitPRM.load(tmp_path / "again").score_traces(lab_items)] == before


def test_a_marker_is_refused(lab_base):
    with pytest.raises(CheckpointError, match="marker"):
        ImplicitPRM.initialise(lab_base, encoding=Encoding(marker="Now "))


def test_another_reference_than_the_trained_one_is_refused(prm, tmp_path):
    prm.save(tmp_path / "iprm")
    shutil.copytree(tmp_path / "iprm" / "reference", tmp_path / "other")
    prm.policy.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="other weights"):
        ImplicitPRM.load(tmp_path / "iprm", reference=tmp_path / "other")
    prm.policy.save_pretrained(tmp_path / "iprm" / "reference")
    with pytest.raises(CheckpointError, match=r"reference/model\.safetensors is damaged"):
        ImplicitPRM.load(tmp_path / "iprm")


@pytest.mark.parametrize("name", ["surefoot.json", "implicit.json", "config.json", "model.safetensors"])
def test_a_missing_or_broken_file_is_named(prm, tmp_path, name):
    prm.save(tmp_path / "iprm")
    shutil.copytree(tmp_path / "iprm", tmp_path / "broken")
    (tmp_path / "iprm" / name).unlink()
    with pytest.raises(CheckpointError, match="model_type" if name == "config.json" else name):
        ImplicitPRM.load(tmp_path / "iprm")
    (tmp_path / "broken" / name).write_text("broken")
    with pytest.raises(CheckpointError, match=name):
        ImplicitPRM.load(tmp_path / "broken")


def test_a_card_of_another_family_is_refused(prm, tmp_path):
    prm.save(tmp_path / "iprm")
    card = json.loads((tmp_path / "iprm" / "surefoot.json").read_text())
    (tmp_path / "iprm" / "surefoot.json").write_text(json.dumps(card | {"family": "surefoot"}))
    with pytest.raises(CheckpointError, match="family"):
        ImplicitPRM.load(tmp_path / "iprm")


def test_steps_beyond_the_context_are_unscored(lab_base, lab_items):
    (trace,) = ImplicitPRM.initialise(lab_base).encode(lab_items[:1])
    limit = trace.positions[1] + 1
    model = shaken(ImplicitPRM.initialise(lab_base, encoding=Encoding(max_length=limit)))
    [record] = model.score_traces(lab_items[:1])
    assert None not in record.scores[:2]
    assert set(record.scores[2:]) == {None}
    assert "context" in record.unscored_reason
    nothing = ImplicitPRM.initialise(lab_base, encoding=Encoding(max_length=8))
    [empty] = nothing.score_traces(lab_items[:1])
    assert set(empty.scores) == {None}
    assert empty.usage.verifier_tokens == 0


def test_pieces_of_the_vocabulary_give_the_log_softmax(lab_base):
    policy = ImplicitPRM.initialise(lab_base).policy
    torch.manual_seed(0)
    states, targets = torch.randn(7, 32, requires_grad=True), torch.randint(0, 20, (7,))
    expected = policy.get_output_embeddings()(states).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    (gradient,) = torch.autograd.grad(expected.sum(), states, retain_graph=True)
    for limit in (1, 60, 10_000):
        found = token_statistics(policy, states, targets, limit=limit)[0]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), states)[0], gradient)


def test_a_model_that_caps_its_logits_is_refused(lab_base):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    capped = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            final_logit_softcapping=0.01,
            initializer_range=0.5,
        )
    )
    with pytest.raises(CheckpointError, match="cap"):
        require_plain_head(capped)


def test_what_a_tool_says_does_not_count(lab_base):
    model = shaken(ImplicitPRM.initialise(lab_base))
    model.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] }} = {{ m.content }} + 0\n{% endfor %}"
    )
    problem = Problem(text="Start with 1. Add 1.")

    def run(said: str) -> Trace:
        messages = [
            ("user", "1"),
            ("assistant", "1 + 1"),
            ("tool", said),
            ("assistant", "2 + 2"),
            ("assistant", "3"),
        ]
        return Trace(
            problem_id=problem.id,
            messages=tuple(Message(role=role, content=content) for role, content in messages),
            steps=tuple(Step(message=at, start=0, end=len(messages[at][1])) for at in (1, 3, 4)),
        )

    (trace,) = model.encode([ProblemTrace(problem=problem, trace=run("7 + 7"))])
    first, second, third = counted_tokens(trace)
    assert second.start > first.stop  # the tool's message lies between
    assert third.start == second.stop
    said = model.tokenizer.decode([trace.ids[at] for tokens in (first, second, third) for at in tokens])
    assert "7" not in said
    assert "2 + 2" in said


def test_an_encoding_without_starts_is_refused():
    with pytest.raises(ScoreError, match="starts"):
        response_of(EncodedTrace(ids=(1, 2), positions=(1,)))
