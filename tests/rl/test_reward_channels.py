"""Hidden reasoning does not reach a reward unless it is asked for, and a planted leak is found."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from fixed_scorer import FixedScorer
from hypothesis import given
from hypothesis import strategies as st
from rollouts import TellsTokens
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

import surefoot
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.labelling import VerifierLabeller
from surefoot.labelling.verifiers.equations.verifier import EquationVerifier
from surefoot.labelling.verifiers.gold_calls import GoldCallVerifier
from surefoot.models import Ensemble, LabelScorer
from surefoot.protocols import ALL_CHANNELS, ProblemTrace, Sampling
from surefoot.records import Message, Problem, Reasoning, StepScores, Trace
from surefoot.rl import Judges, RLConfig, Sample, Task, roll_out, training_samples
from surefoot.rl.channels import canaries, heard, require_no_leak, trace_canaries
from surefoot.rl.credit import Implicit, MinForm, Mixed, Outcome, Summed
from surefoot.rl.engines.rewards import StepRewards
from surefoot.rl.loop import _sample_row, judge
from surefoot.rl.rounds import select_solutions
from surefoot.scores import channels_read
from surefoot.segment import Line, segment_trace

SECRET = "the note is surely a trap, so I will pretend to compute it"
THOUGHT = f"<think>\n{SECRET}\n</think>\n\n"
SHOWN = "1 + 3 = 4\nAnswer: 4\n"
PROBLEM = Problem(text="Start with 1. Add 3.", answer="4")
GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))


class Watching:
    """Scores every step with 1, and keeps what it got."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: list[Trace] = []

    def score_traces(self, items):
        self.seen += [item.trace for item in items]
        return [
            StepScores(trace_id=i.trace.id, scorer=self.name, scores=(1.0,) * len(i.trace.steps))
            for i in items
        ]


def tokenizer(*special: str) -> PreTrainedTokenizerFast:
    """Byte-level, which gives any text back; ``special`` tokens are dropped from decoded text."""
    bpe = ByteLevelBPETokenizer()
    tags = ["<|endoftext|>", *special]
    bpe.train_from_iterator([THOUGHT + SHOWN], vocab_size=300, special_tokens=tags, show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", additional_special_tokens=list(special)
    )


def rollouts(text: str = THOUGHT + SHOWN, *, template: str = "{problem}\n", **fields) -> list[list[Sample]]:
    task = Task(problems=[PROBLEM], segmenter=Line(), grader=GRADER, **fields)
    task = replace(task, prompt=replace(task.prompt, template=template))
    words = tokenizer()
    policy = TellsTokens(ScriptedPolicy(lambda request, sample: text if sample % 2 else SHOWN), words)
    return asyncio.run(
        roll_out(policy, [PROBLEM], words, task, n=2, seed=0, sampling=Sampling(max_tokens=99))
    ).groups


def learn(groups, scorer, *, grade_reasoning=False, credit=None):
    config = RLConfig(credit=credit or Mixed(of=MinForm(), process=1.0), samples=2)
    return training_samples(groups, Judges(scorer=scorer, grade_reasoning=grade_reasoning), config)


def test_a_clean_run_passes_and_no_reasoning_is_graded():
    scorer = Watching()
    ((plain, thinking),) = learn(rollouts(), scorer)
    assert [trace.text for trace in scorer.seen] == [SHOWN, SHOWN]
    assert plain.canaries == ()
    assert thinking.canaries
    assert thinking.scores == plain.scores == (1.0, 1.0)
    # the tokens of reasoning belong to the step after them
    assert thinking.ends == thinking.step_ends[-2:]
    assert thinking.outcome == plain.outcome == 1.0
    row = _sample_row(1, thinking)
    assert row.scores == (None,) * (len(row.trace.steps) - 2) + (1.0, 1.0)
    assert len(row.advantages) == len(row.trace.steps)


def test_reasoning_is_graded_where_it_is_asked_for():
    scorer = Watching()
    ((_, thinking),) = learn(rollouts(), scorer, grade_reasoning=True)
    assert SECRET in scorer.seen[1].text
    assert len(thinking.scores) == len(thinking.trace.steps)


def test_a_planted_leak_is_found():
    """A pipeline that lost the tags: the text of the trace is no longer what the tokens say."""
    ((plain, thinking),) = rollouts()
    bare = segment_trace(thinking.trace.model_copy(update={"text": f"{SECRET}\n\n{SHOWN}"}), Line())
    ends = tuple(range(len(bare.steps)))
    leaking = replace(thinking, item=ProblemTrace(problem=PROBLEM, trace=bare), ends=ends)
    for credit in (Outcome(), MinForm()):
        with pytest.raises(TrainingError, match="hidden reasoning reached a reward: 'the note is surely"):
            learn([[plain, leaking]], Watching(), credit=credit)
    learn([[plain, leaking]], Watching(), grade_reasoning=True)
    # the same words in the visible text are no secret
    quoting = rollouts(THOUGHT + f"I thought: {SECRET}\n{SHOWN}")
    learn(quoting, Watching())


def test_an_implicit_reward_model_reads_every_token_and_is_refused():
    with pytest.raises(TrainingError, match="'grade_reasoning'"):
        learn(rollouts(), Watching(), credit=Implicit())


def test_reasoning_that_the_prompt_opened_and_nothing_ended_has_no_answer():
    ((_, cut),) = rollouts("Answer: 4\n", template="{problem}\n<think>\n")
    assert cut.reasoning_opened
    assert cut.trace.outcome is False
    scorer = Watching()
    learn([[cut]], scorer)
    assert scorer.seen == []


def test_an_engine_that_drops_the_tags_is_found():
    rewards = StepRewards(
        credit=Mixed(of=MinForm(), process=1.0), segmenter=Line(), scorer=Watching(), grader=GRADER
    )
    for special, leaks in ((("<think>", "</think>"), True), ((), False)):
        words = tokenizer(*special)
        ids = [*words(THOUGHT + SHOWN)["input_ids"], words.eos_token_id]
        response = rewards.decode(PROBLEM, ids, words)
        assert response.canaries
        if leaks:
            with pytest.raises(TrainingError, match="hidden reasoning reached a reward"):
                rewards.score([response])
            replace(rewards, grade_reasoning=True).score([response])
        else:
            (scored,) = rewards.score([response])
            assert scored.scores == (1.0, 1.0)
            assert scored.ends[-1] == scored.tokens - 1 > scored.ends[0]


def test_parsed_reasoning_of_a_completion_is_not_graded():
    scorer = Watching()
    function = StepRewards(scorer=scorer, credit=MinForm(), segmenter=Line())
    message = {"role": "assistant", "content": SHOWN, "reasoning_content": SECRET}
    assert function(["q"], [[message]])[0] == function(["q"], [SHOWN])[0]
    assert [trace.text for trace in scorer.seen] == [SHOWN, SHOWN]


def test_an_environment_hears_tags_but_no_fields():
    trace = Trace(
        problem_id="p",
        messages=(Message(role="assistant", content="Hello", reasoning=Reasoning(text=SECRET)),),
    )
    item, pieces = ProblemTrace(problem=PROBLEM, trace=trace), trace_canaries(trace, PROBLEM.text)
    require_no_leak([(heard(item), pieces)])
    spoken = trace.model_copy(update={"messages": (Message(role="assistant", content=THOUGHT + "Hello"),)})
    with pytest.raises(TrainingError, match="judge or environment"):
        require_no_leak([(heard(ProblemTrace(problem=PROBLEM, trace=spoken)), pieces)])


@given(st.text(alphabet="ab \n", min_size=8, max_size=120), st.integers(0, 80), st.text("cd ", max_size=30))
def test_a_leak_of_47_characters_is_found(hidden, start, around):
    pieces = canaries([hidden], [])
    spaced = " ".join(hidden.split())
    leaked = f"{around}{spaced[start : start + 47]}{around}"
    if len(spaced[start:]) >= 47 or (start == 0 and len(spaced) >= 8):
        assert any(piece in " ".join(leaked.split()) for piece in pieces)
    assert canaries([hidden], [hidden]) == ()


def test_expert_iteration_chooses_by_what_is_visible():
    def judged(text: str) -> Sample:
        about = {"problem_id": "p", "outcome": True, "finish_reason": "stop"}
        trace = segment_trace(Trace(text=text, **about), Line())
        item, ends = ProblemTrace(problem=PROBLEM, trace=trace), tuple(range(len(trace.steps)))
        sample = Sample(item=item, tokens=len(ends), ends=ends)
        scorer = FixedScorer({SHOWN: (0.9, 0.8)})
        return judge([sample], Summed(), Judges(scorer=scorer))[0]

    thinking = judged(THOUGHT + SHOWN)
    assert thinking.scores == (0.9, 0.8)
    assert select_solutions([thinking], most=1, threshold=0.5)[0] == [thinking.trace]
    _, dropped = select_solutions([judged(THOUGHT)], most=1, threshold=0.5)
    assert dropped == {"correct answers with an unscored step": 1}


def test_a_task_states_what_its_judges_read():
    labeller = VerifierLabeller(verifiers=(EquationVerifier(), GoldCallVerifier()))
    scorer = LabelScorer(labeller, name="rules")
    task = Task(problems=[PROBLEM], segmenter=Line(), grader=GRADER, scorer=scorer)
    channels = task.reward_channels({"outcome", "scores"})
    assert channels.reads == {"outcome": ("answer",), "rules": ("calls", "observations", "text")}
    asked = replace(task, grade_reasoning=True).reward_channels({"scores"})
    assert asked.reads == {"rules": ("calls", "observations", "reasoning", "text")}
    assert "graded, as asked" in str(asked)
    assert str(channels).endswith("hidden reasoning: not graded")
    assert str(type(channels)(reads={})) == "hidden reasoning: not graded"


def test_who_declares_nothing_counts_as_reading_everything():
    assert channels_read(FixedScorer({})) == ALL_CHANNELS
    assert Ensemble([FixedScorer({}), FixedScorer({})]).reads == ALL_CHANNELS


def test_every_judge_declares_its_channels():
    """Classes that score, verify or label, and their bases, by their source."""
    classes: dict[str, tuple[list[str], bool, bool]] = {}
    for path in Path(surefoot.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
                judges = any(_judges(part) for part in node.body)
                declares = "reads" in {_name(part) for part in ast.walk(node)}
                classes[node.name] = bases, judges and "Protocol" not in bases, declares

    def declares(name: str) -> bool:
        bases, _, own = classes.get(name, ([], False, False))
        return own or any(map(declares, bases))

    judges = {name for name, (_, judges, _) in classes.items() if judges}
    assert len(judges) > 25
    assert sorted(name for name in judges if not declares(name)) == []


def _judges(part: ast.stmt) -> bool:
    """Whether it is a method of the protocols of scorers, verifiers and labellers."""
    if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    takes_items = [argument.arg for argument in part.args.args] == ["self", "items"]
    return takes_items and part.name in ("score_traces", "verify", "label")


def _name(part: ast.AST) -> str | None:
    """What a function, a variable or an attribute that is assigned is called."""
    if isinstance(part, ast.FunctionDef):
        return part.name
    if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
        return part.id if isinstance(part, ast.Name) else part.attr
    return None
