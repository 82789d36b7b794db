"""From ``--config``, flags and ``--set`` to the settings of reinforcement learning."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.errors import RunError

if TYPE_CHECKING:
    from surefoot.rl.config import RLConfig


def settle(
    *,
    file: Path | None,
    credit: str | None,
    advantage: str | None,
    process_weight: float | None,
    outcome_weight: float | None,
    kl: float | None,
    flags: Mapping[str, object],
    assignments: Sequence[str],
) -> RLConfig:
    """Later ones win: the file, the method by name, flags (those that are not ``None``), assignments.

    Raises ``RunError`` for a file or assignment that cannot be read, for a setting that is refused, which it
    names, and for settings that do not go together.
    """
    from pydantic import ValidationError

    from surefoot.rl.config import RLConfig

    found = read_settings(file) if file else {}
    if credit:
        found |= method(credit)
    if process_weight is not None or outcome_weight is not None:
        found["credit"] = _mixed(found.get("credit"), process_weight, outcome_weight)
    if advantage:
        found["advantage"] = {"kind": advantage}
    if kl is not None:
        objective = _table(found, "objective")
        if kl:
            _table(objective, "kl")["coefficient"] = kl
        else:
            objective["kl"] = None
    for name, value in flags.items():
        if isinstance(value, dict):
            _table(found, name).update(value)  # what the file says beside it stays
        elif value is not None:
            found[name] = value
    for assignment in assignments:
        _assign(found, assignment)
    try:
        return RLConfig.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        raise RunError(f"setting {name}: {said}" if name else said) from error


def read_settings(path: Path) -> dict[str, Any]:
    """A TOML or JSON file, by its ending. Raises ``RunError``."""
    try:
        text = path.read_text("utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise RunError(f"--config {path}: {error} (TOML or JSON, with the fields of RLConfig)") from error
    if not isinstance(found, dict):
        raise RunError(f"--config {path} holds no table of settings")
    return found


def method(name: str) -> dict[str, Any]:
    """Settings of a published method or of a credit rule. Raises ``RunError`` for an unknown name."""
    from surefoot.rl.credit import CREDITS
    from surefoot.rl.presets import PRESETS

    if name in PRESETS:
        preset = PRESETS[name]
        return {
            "credit": preset.credit.model_dump(),
            "advantage": preset.advantage.model_dump(),
            "accuracy_band": preset.accuracy_band,
        }
    if name in CREDITS:
        return {"credit": {"rule": name}}
    raise RunError(f"--credit is {name!r}; choose {', '.join([*CREDITS, *PRESETS])}")


def _mixed(credit: dict[str, Any] | None, process: float | None, outcome: float | None) -> dict[str, Any]:
    """The rule, mixed with the outcome by the weights given."""
    if credit is None:
        raise RunError(
            "--process-weight and --outcome-weight mix a credit rule with the outcome: give --credit"
        )
    if not isinstance(credit, dict) or "rule" not in credit:
        raise RunError("'credit' of --config is no table with a 'rule'")
    mixed = credit if credit["rule"] == "mixed" else {"rule": "mixed", "of": credit}
    weights = {"process": process, "outcome": outcome}
    return mixed | {name: weight for name, weight in weights.items() if weight is not None}


def _table(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The table of that name, made if it is not there."""
    if settings.get(name) is None:
        settings[name] = {}
    table = settings[name]
    if not isinstance(table, dict):
        raise RunError(f"{name!r} of --config is no table")
    return table


def _assign(settings: dict[str, Any], assignment: str) -> None:
    """``objective.clip_high=0.3``: the value is JSON, or text where it is none."""
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise RunError(f"--set {assignment!r}: write name=value, such as objective.clip_high=0.3")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    *path, last = name.split(".")
    table = settings
    for key in path:
        below = table.setdefault(key, {})
        if not isinstance(below, dict):
            raise RunError(f"--set {assignment!r}: {key!r} is no table")
        table = below
    table[last] = value
