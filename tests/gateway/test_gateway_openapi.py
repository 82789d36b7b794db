"""The OpenAPI document, and schemathesis over it: no request that it allows or forbids gives a 5xx."""

from __future__ import annotations

import json

import pytest
from gateway_server import LineScorer, ask, lines, served

from surefoot.gateway.settings import Limits
from surefoot.policies.scripted import ScriptedPolicy


@pytest.fixture(scope="module")
def found():
    limits = Limits(max_tokens=64, default_tokens=64, max_n=2, max_candidates=8, timeout_s=20)
    with served(ScriptedPolicy(lines), LineScorer(), limits=limits) as running:
        yield running


def test_every_answer_is_declared(found):
    status, document = ask(f"{found.root}/openapi.json")
    assert status == 200
    operations = {
        (path, method): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert len(operations) == 11
    for operation in operations.values():
        assert {"200", "401", "403", "429"} <= set(operation["responses"])
        assert "422" not in operation["responses"]
        if "requestBody" in operation:
            assert {"400", "404", "413", "500", "502", "503", "504"} <= set(operation["responses"])
    stream = operations["/v1/chat/completions", "post"]["responses"]["200"]["content"]
    assert set(stream) == {"application/json", "text/event-stream"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_schemathesis_finds_no_server_error(found):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings

    document = schemathesis.openapi.from_url(f"{found.root}/openapi.json")
    checks = [
        schemathesis.checks.not_a_server_error,
    ]
    tried = 0
    for result in document.get_all_operations():
        operation = result.ok()

        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=15,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def one(case):
                nonlocal tried
                tried += 1
                answer = case.call()
                case.validate_response(answer, checks=checks)
                if answer.status_code >= 400 and answer.status_code != 405:
                    assert set(json.loads(answer.content)["error"]) == {"message", "type", "param", "code"}

            try:
                one()
            except Exception as error:
                if "Unsatisfiable" not in type(error).__name__:
                    raise
    assert tried > 100
