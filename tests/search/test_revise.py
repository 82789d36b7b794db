"""Attempts that are written again, told what is wrong with them."""

import pytest
from pydantic import ValidationError
from toy_search import HashScorer, ScriptedPolicy, Watched, problems, searched

from surefoot.errors import SandboxError
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models.kinds.derived import LabelScorer
from surefoot.policies import IN_PROCESS
from surefoot.policies.prompts import PromptFormat
from surefoot.records import Message, Problem
from surefoot.search import Revise, Steps

[QUESTION] = problems(1)
WRONG, RIGHT = "2 + 3 = 6\n6 + 1 = 7\nAnswer: 7\n", "2 + 3 = 5\n5 + 1 = 6\nAnswer: 6\n"


class Reader:
    """Writes what is right once the prompt tells it what is wrong; it notes what it was asked."""

    name = "reader"

    def __init__(self, needed: str = "6 + 1") -> None:
        self.asked = []
        self.inner = ScriptedPolicy(self.answer)
        self.needed = needed

    def answer(self, request, sample):
        told = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
        self.asked.append(request)
        whole = RIGHT if "is wrong" in told else WRONG
        return whole[len(request.prefix) :]

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        return await self.inner.sample(requests)


def arithmetic():
    labeller = VerifierLabeller(verifiers=(open_verifier("equations"),))
    return LabelScorer(labeller, name="equations")


def test_the_reason_reaches_the_policy_and_the_corrected_attempt_is_chosen():
    policy = Reader()
    [result] = searched(Revise(), [QUESTION], policy, arithmetic())
    first, second = policy.asked
    assert second.prompt.startswith(first.prompt + WRONG.rstrip())
    assert "2 + 3 = 6" in second.prompt.split("is wrong")[1]
    assert "5" in second.prompt.split("is wrong")[1], "the verifier's own reason"
    assert result.candidates[result.chosen].text == RIGHT
    assert [len(trace.text) for trace in result.candidates] == [len(RIGHT), len(WRONG)]
    assert result.usage.completion_tokens > len(RIGHT.split())


def test_an_accepted_attempt_is_not_written_again():
    policy = Watched(ScriptedPolicy(lambda request, sample: RIGHT))
    [result] = searched(Revise(n=2, rounds=3), [QUESTION], policy, arithmetic())
    assert policy.drawn == 2
    assert result.weights == (2,)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_rounds_are_bounded(rounds):
    policy = Watched(ScriptedPolicy(lambda request, sample: f"{WRONG}attempt {sample}"))
    [result] = searched(Revise(rounds=rounds), [QUESTION], policy, arithmetic())
    assert policy.drawn == 1 + rounds
    assert result.candidates[result.chosen].text.endswith(f"attempt {rounds}"), "of equal ones the last"


def test_steps_before_the_wrong_one_are_kept():
    late = "2 + 3 = 5\n5 + 1 = 7\nAnswer: 7\n"

    def answer(request, sample):
        text = RIGHT if "is wrong" in request.prompt else late
        return text[len(request.prefix) :]

    policy = Watched(ScriptedPolicy(answer))
    [result] = searched(Revise(keep=True), [QUESTION], policy, arithmetic())
    assert [request.prefix for request in policy.requests] == ["", "2 + 3 = 5\n"]
    assert result.candidates[result.chosen].text == RIGHT


def test_a_conversation_is_told_in_messages():
    policy = Reader()
    steps = Steps(prompt=PromptFormat(chat=True))
    searched(Revise(), [QUESTION], policy, arithmetic(), steps=steps)
    asked, attempt, told = policy.asked[1].prompt
    assert (asked.role, asked.content) == ("user", policy.asked[0].prompt[0].content)
    assert attempt == Message(role="assistant", content=WRONG)
    assert told.role == "user"
    assert told.content.startswith("This step is wrong:\n\n2 + 3 = 6")


def test_a_score_alone_says_that_the_step_was_judged_wrong():
    policy = Reader()
    searched(Revise(rounds=1), [QUESTION], policy, HashScorer(lambda prefix: 0.1))
    assert "It was judged wrong (score 0.10)." in policy.asked[1].prompt


def test_what_a_step_says_is_no_placeholder_and_is_bounded():
    text = "so {reason} " + "x" * 9000 + "\nAnswer: 6\n"
    policy = Watched(ScriptedPolicy(lambda request, sample: text))
    search = Revise(rounds=1, feedback="{step}|{reason}")
    searched(search, [QUESTION], policy, HashScorer(lambda prefix: 0.1))
    told = policy.requests[1].prompt.split("Answer: 6\n\n")[1]
    assert told.startswith("so {reason} xxx")
    assert len(told) < 2100


def test_settings_that_tell_nothing_are_refused():
    with pytest.raises(ValidationError, match="reason"):
        Revise(feedback="Try again.")


def test_visible_tests_are_told_and_hidden_ones_never():
    prompt = "def twice(a):\n"
    tests = [
        {"name": "example 1", "code": "assert twice(2) == 4", "visibility": "visible"},
        {"name": "hidden", "code": "assert twice(31337) == 62674", "visibility": "hidden"},
    ]
    code = {"entry_point": "twice", "prompt": prompt, "tests": tests, "reference": "    return 2 * a\n"}
    problem = Problem(id="twice", text=prompt, meta={"code": code})
    try:
        verifier = open_verifier("visible-tests")
        verifier.sandbox  # noqa: B018 - it refuses here where programs cannot be isolated
    except SandboxError as missing:
        pytest.skip(str(missing))

    def answer(request, sample):
        return "    return a + a\n" if "is wrong" in request.prompt else "    return a * a + 1\n"

    policy = Watched(ScriptedPolicy(answer))
    with verifier:
        scorer = LabelScorer(VerifierLabeller(verifiers=(verifier,)), name="visible-tests")
        [result] = searched(Revise(), [problem], policy, scorer)
    assert policy.drawn == 2
    told = policy.requests[1].prompt
    assert "This test fails:\n\nassert twice(2) == 4" in told
    assert "31337" not in told
    assert result.candidates[result.chosen].text == "    return a + a\n"
    assert result.scores[0].reasons == ("all 1 tests pass",)
