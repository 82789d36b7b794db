"""TRL: step rewards as its reward function, and as advantages at tokens (with the real trainer)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from step_rewards import Every, OnlyStep, TextScorer, piece_starts, step_score

from benchmarks.worlds.digits.world import generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import ScoreError, TrainingError
from surefoot.rl import engines
from surefoot.rl.advantage import Gae, Group, LeaveOneOut, Reinforce
from surefoot.rl.credit import Effective, MinForm, Mixed, Summed
from surefoot.rl.engines.rewards import StepRewards
from surefoot.segment import Line

EXACT = Grader(checker=AnswerChecker("exact"))
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed (extra 'trl')")
# TRL and its base class warn of their own future
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_one_number_a_completion():
    credit = MinForm(temperature=1e-3, signed=False)
    reward = StepRewards(scorer=TextScorer(), credit=credit, segmenter=Every(3), name="worst_step")
    chats = [
        [{"role": "assistant", "content": "12+34=46"}],
        [{"role": "assistant", "content": "???"}],
    ]
    prompts = [[{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]] * 2
    worst = min(step_score(part) for part in ("12+", "34=", "46"))
    assert reward.__name__ == "worst_step"
    assert reward(prompts=prompts, completions=chats, completion_ids=[[1], [2]], trainer_state=None) == [
        pytest.approx(worst),
        pytest.approx(worst),  # not scored: the worst of its group
    ]
    assert reward(prompts=["p", "q"], completions=["12+34=46", "???"]) == [pytest.approx(worst), None]


def test_columns_of_the_data_set():
    credit = Mixed(of=Summed(), outcome=10.0)
    columns = {"problem": "question", "answer": "gold"}
    reward = StepRewards(scorer=TextScorer(), credit=credit, segmenter=Every(9), grader=EXACT, **columns)
    found = reward(prompts=["a", "b"], completions=["8", "8"], question=["q", "r"], gold=[8, 9])
    assert found == [pytest.approx(step_score("8") + 10), pytest.approx(step_score("8"))]
    with pytest.raises(TrainingError, match="lacks the column 'question'"):
        reward(prompts=["a"], completions=["8"], gold=[8])
    with pytest.raises(TrainingError, match="without an answer"):
        reward(prompts=["a"], completions=["8"], question=["q"])


def test_what_is_not_one_text_is_refused():
    reward = StepRewards(scorer=TextScorer(), credit=Summed(), segmenter=Line())
    for message in ({"content": "", "tool_calls": []}, {"content": None, "reasoning_content": "so"}):
        with pytest.raises(TrainingError, match="not one assistant message"):
            reward(prompts=["p"], completions=[[message]])
    with pytest.raises(TrainingError, match="lacks a user message"):
        reward(prompts=[[{"role": "system", "content": "s"}]], completions=["7"])
    with pytest.raises(TrainingError, match="advantages of single steps"):
        StepRewards(scorer=TextScorer(), credit=Effective(start=0.5), segmenter=Line(), grader=EXACT)(
            prompts=["p"], completions=["7"], answer=["7"]
        )


def test_only_the_trainer_needs_trl():
    assert engines.StepRewards is StepRewards
    assert "StepGRPOTrainer" in dir(engines)


# --- with TRL

QUIET = {
    "beta": 0.0,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}
"""Settings of every trainer here: no KL term, no files, one CPU in float32."""


def make(base: Path, out: Path, *, kind=None, rows=None, **settings):
    """A trainer on the tiny model: ``kind`` is TRL's own or one of ours; 2 prompts a round, 4 samples."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    arguments = {
        key: settings.pop(key)
        for key in ("rewards", "advantage", "reward_funcs", "eval_dataset")
        if key in settings
    }
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    problems = generate_problems(8, seed=4)
    rows = rows or [{"prompt": one.text + "\n", "text": one.text, "answer": one.answer} for one in problems]
    if isinstance(rows[0]["prompt"], list):
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    options = {
        "output_dir": str(out),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 2,
        "max_completion_length": 20,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "seed": 3,
        **QUIET,
    }
    return (kind or GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(base, dtype="float32"),
        args=GRPOConfig(**(options | settings)),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        **arguments,
    )


def watching():
    """Our trainer, which notes what its loss gets and gives, and the same loss written by hand."""
    from surefoot.rl.engines import StepGRPOTrainer

    class Watching(StepGRPOTrainer):
        def compute_loss(self, model, inputs, **rest):
            loss = super().compute_loss(model, inputs, **rest)
            parameters = [one for one in model.parameters() if one.requires_grad]
            theirs = torch.autograd.grad(loss, parameters, retain_graph=True)
            logprobs = by_hand(model, inputs)
            old = inputs.get("old_per_token_logps", logprobs.detach())
            ratio = (logprobs - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            gains = torch.minimum(ratio * inputs["advantages"], clipped * inputs["advantages"])
            mask = inputs["completion_mask"]
            hand = -(gains * mask).sum() / (mask.sum() if self.args.steps_per_generation == 1 else 1)
            ours = torch.autograd.grad(hand, parameters, retain_graph=True)
            at_tokens = torch.autograd.grad(hand, logprobs)[0]
            self.seen = [
                *getattr(self, "seen", []),
                (inputs, loss.item(), theirs, hand.item(), ours, at_tokens),
            ]
            return loss

    return Watching


def by_hand(model, inputs):
    """log π [B, T] of the completions' tokens, one row at a time and without padding."""
    rows = []
    for row in range(len(inputs["completion_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        ids = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()]
        logits = model(input_ids=torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
        mine = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
        rows.append(torch.nn.functional.pad(mine, (0, inputs["completion_ids"].shape[1] - len(ids))))
    return torch.stack(rows)


@needs_trl
def test_equal_advantages_train_as_trls_own(lab_base, tmp_path):
    """One step a completion and GRPO's estimator: two gradient steps, each twice, in two passes, as TRL's."""
    from surefoot.rl.engines import StepGRPOTrainer

    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2}
    settings |= {"max_steps": 4, "max_grad_norm": 0.5, "optim": "sgd", "learning_rate": 0.3}
    whole = {"credit": Summed(), "segmenter": Every(10_000)}
    theirs = make(lab_base, tmp_path, reward_funcs=StepRewards(scorer=TextScorer(), **whole), **settings)
    ours = make(
        lab_base,
        tmp_path,
        kind=StepGRPOTrainer,
        rewards=StepRewards(scorer=TextScorer(), **whole),
        advantage=Group(std="sample", epsilon=1e-4),  # TRL's
        **settings,
    )
    before = [one.detach().clone() for one in ours.model.parameters()]
    for trainer in (theirs, ours):
        torch.manual_seed(1)  # the same completions
        trainer.train()
    moved = 0.0
    for start, a, b in zip(before, theirs.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        moved += float((b - start).abs().sum())
    assert moved > 1.0
    logged = [
        [row["reward"] for row in trainer.state.log_history if "reward" in row] for trainer in (theirs, ours)
    ]
    assert logged[0] == pytest.approx(logged[1], nan_ok=True)


@needs_trl
@pytest.mark.parametrize(
    ("credit", "estimator"),
    [
        (Summed(), LeaveOneOut()),
        (MinForm(), Group()),
        (Summed(signed=True), Reinforce()),
        (Effective(start=0.5), LeaveOneOut()),
    ],
)
def test_each_token_gets_its_own_advantage(lab_base, tmp_path, credit, estimator):
    rewards = StepRewards(
        credit=credit, segmenter=Every(4), scorer=TextScorer(), grader=EXACT, problem="text"
    )
    trainer = make(lab_base, tmp_path, kind=watching(), rewards=rewards, advantage=estimator)
    trainer.train()
    assert len(trainer.seen) == 2
    padded = 0
    for inputs, loss, theirs, hand, ours, _ in trainer.seen:
        mask, advantages = inputs["completion_mask"].bool(), inputs["advantages"]
        assert advantages.shape == mask.shape
        padded += int((~mask).sum())
        assert not advantages[~mask].any()
        check_returns(trainer.processing_class, inputs, credit, estimator)
        assert loss == pytest.approx(hand, abs=1e-5)
        for a, b in zip(theirs, ours, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
        assert any(float(one.abs().max()) > 1e-4 for one in theirs)
    assert padded, "no completion was shorter than another"
    assert "unscored_steps" in trainer.state.log_history[0]


def check_returns(tokenizer, inputs, credit, estimator):
    """Within a completion, advantages change from step to step as the rule says, at the right token."""
    for row, mask in zip(range(len(inputs["advantages"])), inputs["completion_mask"].bool(), strict=True):
        ids = inputs["completion_ids"][row][mask].tolist()
        pieces = [tokenizer.decode([one], skip_special_tokens=True) for one in ids]
        text = "".join(pieces)
        advantages = inputs["advantages"][row][mask].numpy()
        step_of = np.minimum(np.array(piece_starts(pieces)) // 4, max(0, (len(text) - 1) // 4))
        if not text.strip() or "?" in text:
            continue
        for step in set(step_of.tolist()):
            assert np.ptp(advantages[step_of == step]) == pytest.approx(0.0, abs=1e-6)
        scores = np.array([step_score(text[at : at + 4]) for at in range(0, len(text), 4)])
        signed = 2 * scores - 1
        if isinstance(estimator, Reinforce):  # the sum of the rewards to come
            expected = signed[::-1].cumsum()[::-1]
            np.testing.assert_allclose(advantages, expected[step_of], atol=1e-6)
        elif isinstance(credit, Effective):  # no outcome is right here: what is left is the value's change
            expected = credit.alpha * np.diff(scores, prepend=0.5)
            np.testing.assert_allclose(advantages, expected[step_of], atol=1e-5)
        elif isinstance(credit, Summed):  # what the baseline takes off each step is the same for all steps
            drops = -np.diff(advantages)[np.diff(step_of) == 1]
            rewards = scores[:-1]
            if len(drops) == len(rewards) and len(drops) > 1:
                np.testing.assert_allclose(drops - drops[0], rewards - rewards[0], atol=1e-5)


@needs_trl
def test_a_reward_for_one_step_moves_the_tokens_up_to_it_alone(lab_base, tmp_path):
    rewards = StepRewards(credit=OnlyStep(1), segmenter=Every(4))
    trainer = make(lab_base, tmp_path, kind=watching(), rewards=rewards, advantage=Reinforce(), max_steps=1)
    trainer.train()
    ((inputs, _, _, _, _, gradients),) = trainer.seen
    tokenizer = trainer.processing_class
    inside = 0
    for row, mask in enumerate(inputs["completion_mask"].bool()):
        ids = inputs["completion_ids"][row][mask].tolist()
        response = rewards.decode(generate_problems(1, seed=0)[0], ids, tokenizer)
        (scored,) = rewards.score([response])
        end = scored.ends[min(1, len(scored.ends) - 1)]
        expected = (np.arange(len(mask)) <= end).astype(float)
        np.testing.assert_array_equal(inputs["advantages"][row].numpy(), expected)
        np.testing.assert_array_equal(gradients[row].numpy() != 0, expected != 0)
        inside += end < len(ids) - 1
    assert inside, "no completion goes on after its second step"


@needs_trl
def test_chats_evaluation_and_the_table(lab_base, tmp_path):
    from datasets import Dataset

    from surefoot.rl.engines import StepGRPOTrainer

    rows = [
        {"prompt": [{"role": "user", "content": one.text}], "answer": one.answer}
        for one in generate_problems(4, seed=9)
    ]
    rewards = StepRewards(credit=Mixed(of=MinForm()), segmenter=Every(5), scorer=TextScorer(), grader=EXACT)
    trainer = make(
        lab_base,
        tmp_path,
        kind=StepGRPOTrainer,
        rows=rows,
        rewards=rewards,
        advantage=LeaveOneOut(),
        eval_dataset=Dataset.from_list(rows),
        num_generations_eval=1,
        max_steps=1,
    )
    trainer.train()
    assert np.isfinite(trainer.evaluate()["eval_loss"])
    assert {len(values) for values in (trainer._logs["advantages"], trainer._logs["completion"])} == {8}


@needs_trl
def test_what_does_not_go_with_advantages_at_tokens(lab_base, tmp_path, monkeypatch):
    from trl import GRPOTrainer

    from surefoot.rl.engines import StepGRPOTrainer

    rewards = StepRewards(credit=Summed(), segmenter=Line(), scorer=TextScorer())

    def refused(match, advantage=Reinforce(), **others):  # noqa: B008 (frozen)
        with pytest.raises(TrainingError, match=match):
            StepGRPOTrainer("a model", rewards=rewards, advantage=advantage, **others)

    refused("needs a critic", advantage=Gae())
    refused("give the rewards of steps or turns", reward_funcs=[len])
    refused("'tools'", tools=[len])
    refused("'rollout_func'", rollout_func=len)

    class Liger:
        use_liger_kernel = True

    refused("use_liger_kernel", args=Liger())
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs: inputs["advantages"])
    refused("one advantage per completion")


def episodes(prompts, trainer):
    """Two turns each, with two tokens of an environment between: lengths 3 + 2 + 1 and 1 + 2 + 2."""
    tokenizer = trainer.processing_class
    written = [[5, 6, 7, 8, 9, 10], [5, 8, 9, 6, 7]]
    masks = [[1, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1]]
    rows = [number % 2 for number in range(len(prompts))]
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": [written[row] for row in rows],
        "logprobs": [[0.0] * len(written[row]) for row in rows],
        "env_mask": [masks[row] for row in rows],
        "of_turns": [[0.25, 1.0], [None, 0.5]] * (len(prompts) // 2),
        "outcome": [1.0, 0.0] * (len(prompts) // 2),
    }


def turn_trainer(base, out, of_turns=lambda of_turns, **_: of_turns, credit=Summed(), **settings):  # noqa: B008
    from surefoot.rl.engines import TurnGRPOTrainer

    class Seen(TurnGRPOTrainer):
        def compute_loss(self, model, inputs, **rest):
            self.seen = inputs
            return super().compute_loss(model, inputs, **rest)

        def _get_per_token_logps_and_entropies(self, *args, **rest):
            found = super()._get_per_token_logps_and_entropies(*args, **rest)
            if found[0].requires_grad:
                found[0].register_hook(lambda gradient: setattr(self, "at_tokens", gradient))
            return found

    return make(
        base,
        out,
        kind=lambda **given: Seen(
            turn_rewards=of_turns, credit=credit, rollout_func=episodes, advantage=Reinforce(), **given
        ),
        max_steps=1,
        **settings,
    )


@needs_trl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("credit", "first", "second"),
    [
        # all rewards from each turn on; the unknown one counts as the lowest of its group, 1/4
        (Summed(), [1.25, 1.25, 1.25, 0, 0, 1.0], [0.75, 0, 0, 0.5, 0.5]),
        # the lowest reward, for the turns up to its own
        (MinForm(temperature=1e-3, signed=False), [0.25, 0.25, 0.25, 0, 0, 0], [0.25, 0, 0, 0, 0]),
    ],
)
def test_each_turn_gets_its_own_reward_and_the_environment_none(lab_base, tmp_path, credit, first, second):
    trainer = turn_trainer(lab_base, tmp_path, credit=credit)
    trainer.train()
    found = trainer.seen["advantages"].numpy()
    for ids, advantages in zip(trainer.seen["completion_ids"].tolist(), found, strict=True):
        np.testing.assert_allclose(advantages, first if ids[1] == 6 else [*second, 0], atol=1e-12)
    np.testing.assert_array_equal(trainer.at_tokens.numpy() != 0, found != 0)


@needs_trl
@pytest.mark.filterwarnings("ignore")
def test_the_outcome_of_an_episode_reaches_its_rule(lab_base, tmp_path):
    credit = Effective(alpha=1, scores="advantages")
    trainer = turn_trainer(
        lab_base, tmp_path, of_turns=lambda **of: [[0.5, 1.0]] * len(of["outcome"]), credit=credit
    )
    trainer.train()
    found = trainer.seen["advantages"].numpy()
    # right: 1, and 1 more for the second turn
    for ids, advantages in zip(trainer.seen["completion_ids"].tolist(), found, strict=True):
        np.testing.assert_allclose(advantages, [1, 1, 1, 0, 0, 2] if ids[1] == 6 else [0, 0, 0, 1, 1, 0])


@needs_trl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("rewards", "error", "match"),
    [
        ([[1.0]] * 8, ScoreError, "1 values for the 2 turns"),
        ([[1.0, 0.0]] * 7, TrainingError, "one list for each completion"),
        ([[]] * 8, TrainingError, "one list for each completion"),
    ],
)
def test_a_reward_is_needed_for_each_turn(lab_base, tmp_path, rewards, error, match):
    with pytest.raises(error, match=match):
        turn_trainer(lab_base, tmp_path, of_turns=lambda **_: rewards).train()


def look(at: int) -> str:
    """See what is at a place.

    Args:
        at: the place.
    """
    return f"{at + 6} is at {at}"


class Place:
    """An environment of TRL: its public methods are the tools."""

    def reset(self, **_):
        """Begin an episode."""

    def look(self, at: int) -> str:
        """See what is at a place.

        Args:
            at: the place.
        """
        return look(at)


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call><|im_end|>'


@needs_trl
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [{"tools": [look]}, {"environment_factory": Place}])
def test_turns_between_trls_own_tool_results_get_their_rewards(tmp_path, given):
    """TRL parses the calls, runs its tools and masks the results; what the policy writes is scripted."""
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from surefoot.rl.engines import TurnGRPOTrainer

    marks = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    words.add_tokens(marks[3:])
    words.add_special_tokens(marks[:3])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / "qwen3.jinja").read_text()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip

    class Scripted(TurnGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *_, **__):
            self.turn = getattr(self, "turn", -1) + 1
            texts = {0: [CALL, "at once<|im_end|>"] * 2, 1: [CALL, CALL]}.get(self.turn, ["7<|im_end|>"] * 2)
            return [tokenizer(text)["input_ids"] for text in texts[: len(prompt_ids)]], None

        def compute_loss(self, model, inputs, **rest):
            self.inputs = inputs
            return super().compute_loss(model, inputs, **rest)

    seen = []

    def of_turns(completions, **_):
        seen.extend(completions)
        written = [sum(message["role"] == "assistant" for message in run) for run in completions]
        return [[0.25, 0.5, 1.0] if turns == 3 else [0.75] for turns in written]

    trainer = Scripted(
        LlamaForCausalLM(config),
        turn_rewards=of_turns,
        credit=Summed(),
        advantage=Reinforce(),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=1,
            max_completion_length=400,
            **QUIET,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "What is at 1?"}]}] * 4),
        processing_class=tokenizer,
        **given,
    )
    trainer.train()
    assert [message["role"] for message in seen[0]] == ["assistant", "tool"] * 2 + ["assistant"]
    assert seen[0][1]["content"] == "7 is at 1"
    call, end, once = (
        len(tokenizer(text)["input_ids"]) for text in (CALL, "7<|im_end|>", "at once<|im_end|>")
    )
    wanted = {2 * call + end: [1.75] * call + [1.5] * call + [1.0] * end, once: [0.75] * once}
    masks = (trainer.inputs["completion_mask"] * trainer.inputs["tool_mask"]).bool()
    assert {int(mask.sum()) for mask in masks} == set(wanted)
    for mask, found in zip(masks, trainer.inputs["advantages"], strict=True):  # TRL shuffles them
        assert not found[~mask].any()
        assert found[mask].tolist() == pytest.approx(wanted[int(mask.sum())])
