"""Redaction: private texts are masked before a request is stored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from surefoot.server.gateway.settings import PRIVATE
from surefoot.server.records import GatewayRecord


def redacted(record: GatewayRecord, names: Sequence[str], patterns: Sequence[str]) -> GatewayRecord:
    """The record with private texts masked, character by character, so that steps keep their places."""
    rules = [re.compile(pattern) for pattern in (*(PRIVATE[name] for name in names), *patterns)]

    def masked(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: masked(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [masked(item, key) for item in value]
        if not isinstance(value, str) or key == "id" or key.endswith("_id"):
            return value
        for rule in rules:
            value = rule.sub(lambda match: "█" * len(match[0]), value)
        return value

    return GatewayRecord.model_validate(masked(record.model_dump(mode="python")))
