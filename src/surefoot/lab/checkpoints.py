"""Where the shipped language models of the lab are."""

from __future__ import annotations

from pathlib import Path

_SHIPPED = Path(__file__).parent / "shipped"

POLICY = _SHIPPED / "policy"
"""A small Llama whose training was stopped early: it knows the format and makes mistakes."""

TRUNK = _SHIPPED / "trunk"
"""A Llama trained for longer on the same world's text: the body that lab reward models start from."""
