"""Counts that other servers and files report are bounded at every site that reads one."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import pytest
from openai_server import Reply, chat, serve
from pydantic import TypeAdapter, ValidationError

import surefoot
from surefoot.formats.imports import reported_usage
from surefoot.models.kinds.yes_no import OpenAIYesNo
from surefoot.models.remote.wires import GatewayScore, WireRequest
from surefoot.policies.openai import OpenAIPolicy
from surefoot.policies.openai_responses import TokenCounts, limited_prompt
from surefoot.protocols import SampleRequest, Sampling
from surefoot.records import MAX_COUNT, Count, Usage, reported_count

SOURCE = Path(surefoot.__file__).parent
COUNTED = re.compile(
    r"(prompt|completion|input|output|reasoning|verifier|cached)_tokens|tokens_(sent|received)|api_calls"
    r"|max_model_len"
)
OTHERS = ("policies", "models", "formats", "rl", "sandbox", "labelling")
"""Packages that read what other programs wrote."""


def trees():
    for package in OTHERS:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE), ast.parse(path.read_text())


def test_every_field_of_a_response_with_a_count_has_the_bounded_type():
    sites = [
        (f"{path}:{node.lineno}", ast.unparse(node.annotation))
        for path, tree in trees()
        for model in ast.walk(tree)
        if isinstance(model, ast.ClassDef) and "BaseModel" in map(ast.unparse, model.bases)
        for node in model.body
        if isinstance(node, ast.AnnAssign) and COUNTED.fullmatch(ast.unparse(node.target))
    ]
    assert len(sites) >= 5, sites
    assert [site for site in sites if not site[1].startswith("Count")] == []


def test_every_count_that_is_looked_up_in_a_row_is_bounded():
    """``row.get("…_tokens")`` stands only inside ``reported_count(…)``."""
    sites, bounded = set(), set()
    for path, tree in trees():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            inside = {
                f"{path}:{got.lineno} {got.args[0].value}"
                for argument in call.args
                for got in ast.walk(argument)
                if isinstance(got, ast.Call)
                and isinstance(got.func, ast.Attribute)
                and got.func.attr == "get"
                and isinstance(got.args[0], ast.Constant)
                and COUNTED.fullmatch(str(got.args[0].value))
            }
            sites |= inside
            if ast.unparse(call.func) == "reported_count":
                bounded |= inside
    assert len(sites) >= 3
    assert sites - bounded == set()


@pytest.mark.parametrize("name", ["prompt_tokens", "input_tokens", "tokens_sent"])
def test_the_tokens_that_a_row_of_a_file_reports_are_bounded(name):
    assert reported_usage({name: 10**30}, {name: -1}).prompt_tokens == MAX_COUNT
    assert reported_usage({name: "many"}, {name: 3}).prompt_tokens == 3


@pytest.mark.parametrize(
    ("reported", "count"),
    [
        *(
            (7, 7),
            ("12", 12),
            (3.9, 3),
            (None, 0),
            (-5, 0),
            (True, 1),
            ("many", 0),
            ([1], 0),
            (float("nan"), 0),
        ),
        *((10**30, MAX_COUNT), (float("inf"), MAX_COUNT), ("1e400", MAX_COUNT)),
    ],
)
def test_a_reported_count_is_a_number_within_bounds(reported, count):
    assert reported_count(reported) == count
    assert reported_count(reported, 5) == min(5, count)


def test_a_count_of_thousands_of_digits_is_bounded_too():
    assert reported_count(10**5000) == MAX_COUNT


def test_counts_of_records_are_bounded_and_never_negative():
    usage = Usage(completion_tokens=10**30) + Usage(completion_tokens=10**30)
    assert usage.completion_tokens == MAX_COUNT
    assert Usage.model_validate_json(f'{{"calls": 1{"0" * 40}}}').calls == MAX_COUNT
    with pytest.raises(ValidationError):
        TypeAdapter(Count).validate_python(-1)


LIE = {"prompt_tokens": 10**30, "completion_tokens": 10**30}


def test_a_policys_counts_are_no_larger_than_the_request_could_have_used():
    async def main():
        answer = chat(["x"]) | {"usage": {**LIE, "completion_tokens_details": {"reasoning_tokens": 10**30}}}
        with serve(lambda _: Reply(payload=answer)) as server:
            policy = OpenAIPolicy(model="m", base_url=server.url)
            [result] = await policy.sample([SampleRequest(prompt="Hi", sampling=Sampling(max_tokens=9))])
        [completion] = result.completions
        assert (completion.tokens, completion.reasoning.tokens, result.usage.completion_tokens) == (9, 9, 9)
        assert 65_536 < result.usage.prompt_tokens < 66_000

    asyncio.run(main())


def test_a_response_is_no_longer_than_the_request_allows():
    async def main():
        with serve(lambda _: Reply(payload=chat(["x" * 5_000_000]))) as server:
            policy = OpenAIPolicy(model="m", base_url=server.url, max_retries=0)
            [result] = await policy.sample([SampleRequest(prompt="Hi", sampling=Sampling(max_tokens=9))])
        assert not result.completions
        assert "longer than 1018464 bytes" in result.error

    asyncio.run(main())


def test_a_verifiers_counts_are_no_larger_than_the_request_could_have_used():
    async def main():
        choice = {"text": "Yes", "logprobs": {"top_logprobs": [{"Yes": -0.1, "No": -2.0}]}}
        with serve(lambda _: Reply(payload={"choices": [choice], "usage": LIE})) as server:
            policy = OpenAIPolicy(model="m", base_url=server.url, mode="completions")
            reader = OpenAIYesNo(policy, yes=["Yes"], no=["No"])
            [odds] = await reader.read([SampleRequest(prompt="Hi")])
        assert 65_536 < odds.usage.verifier_tokens < 66_000
        request = WireRequest(body={"items": [{"problem": "1 + 1", "steps": ["2"]}]})
        [item] = GatewayScore().read(
            request, f'{{"results": [{{"scores": [0.5]}}], "usage": {{"verifier_tokens": {10**30}}}}}'
        )
        assert item.tokens < 100_000

    asyncio.run(main())


def test_a_prompt_may_have_a_token_a_byte_and_what_a_template_adds():
    assert limited_prompt(60_000, {"prompt": "a"}) == 60_000
    assert limited_prompt(MAX_COUNT, {"prompt": "a" * 1000}) == 65_536 + 1013
    counts = TokenCounts(prompt_tokens=3, completion_tokens=10**30)
    counts.limit({}, completion=7)
    assert (counts.prompt_tokens, counts.completion_tokens) == (3, 7)


def test_a_servers_reason_is_short_and_has_no_escape_sequences():
    request = WireRequest(body={"items": [{"problem": "1 + 1", "steps": ["2"]}]})
    reason = "\\u001b]0;owned\\u0007\\u001b[2J" * 100 + "too " + "long " * 1_000_000
    [item] = GatewayScore().read(
        request, f'{{"results": [{{"scores": [null], "unscored_reason": "{reason}"}}]}}'
    )
    assert len(item.reason) <= 500
    assert item.reason.startswith("too long")
    assert item.reason.isprintable()
