"""The scripted critic errs as often as it says, and its words are in the tokenizer."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.worlds.critic import CORRECT, INCORRECT, PIECES, NoisyCritic
from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.protocols import SampleRequest
from surefoot.records import Message

PROMPT = "Start with 7. Add 3. Multiply by 4.\n7 + 3 = 0\nNow 0\n0 * 4 = 2\nAnswer: 2\n"


def write(critic: NoisyCritic, prompt: str = PROMPT, n: int = 1) -> list[str]:
    (result,) = asyncio.run(critic.sample([SampleRequest(prompt=prompt, n=n)]))
    assert result.error is None
    return [completion.text for completion in result.completions]


def test_a_faultless_critic_stops_at_the_first_error() -> None:
    verdicts = [CORRECT, CORRECT, INCORRECT]
    compact = "".join(f"\nStep {number}) {verdict}" for number, verdict in enumerate(verdicts, 1))
    assert write(NoisyCritic(worked=False)) == [f"{compact}\n</think>"]
    assert write(NoisyCritic()) == [
        "\nStep 1) 0 should be 0 -> \\boxed{correct}\nStep 2) 0 should be 0 -> \\boxed{correct}"
        "\nStep 3) 2 should be 0 -> \\boxed{incorrect}\n</think>"
    ]


def test_numbered_steps_are_read_too() -> None:
    problem, *lines = PROMPT.splitlines()
    numbered = "\n".join(f"Step {number}) {line}" for number, line in enumerate(lines, 1))
    assert write(NoisyCritic(), f"{problem}\n\n{numbered}\n") == write(NoisyCritic())


def test_the_rate_of_wrong_verdicts_is_the_one_given() -> None:
    first = [text.split("\nStep 2)")[0] for text in write(NoisyCritic(error_rate=0.2), n=2000)]
    wrong = sum(text.endswith(INCORRECT) or f"{INCORRECT}\n" in text for text in first)
    assert wrong / 2000 == pytest.approx(0.2, abs=0.03)


def test_an_omitted_verdict() -> None:
    (text,) = write(NoisyCritic(omit_rate=1.0))
    assert text.endswith("Step 3) 2 should be 0 -> \n</think>")
    assert text.count(CORRECT) == 2


def test_samples_depend_on_seed_and_number_alone() -> None:
    critic = NoisyCritic(error_rate=0.5)
    many = write(critic, n=8)
    (later,) = asyncio.run(critic.sample([SampleRequest(prompt=PROMPT, n=3, first=5)]))
    assert [completion.text for completion in later.completions] == many[5:]
    assert len(set(many)) > 1


def test_messages_and_other_worlds() -> None:
    message = (Message(role="user", content=PROMPT),)
    (chat, other) = asyncio.run(
        NoisyCritic().sample([SampleRequest(prompt=message), SampleRequest(prompt="What is 1 + 1?\n2\n")])
    )
    assert chat.completions[0].text == write(NoisyCritic())[0]
    assert other.error.startswith("policy: ")
    assert not other.completions


def test_critiques_go_through_the_tokenizer_unchanged() -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(list(PIECES))
    problem, *lines = PROMPT.splitlines()
    numbered = "\n".join(f"Step {number}) {line}" for number, line in enumerate(lines, 1))
    prompt = f"{problem}\n\n{numbered}\n"
    critiques = write(NoisyCritic(), prompt)[0] + write(NoisyCritic(worked=False), prompt)[0]
    text = prompt + "<think>" + critiques + "\nIs the solution correct? No"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
