"""Chat messages, tool calls and tool schemas in the shapes that servers and agents use.

A message, part, call or result is read, refused by name, or counted as left out:
:mod:`surefoot.messages.reading` reads with the words of :mod:`surefoot.messages.dialects`.
"""

from surefoot.messages.arguments import (
    MAX_DEPTH,
    call_arguments,
    call_error,
    canonical_arguments,
    json_depth,
    normal_name,
    parse_arguments,
    strict_decoder,
)
from surefoot.messages.reading import StoreAttachment, message_fields, read_messages, tool_fields

__all__ = [
    "MAX_DEPTH",
    "StoreAttachment",
    "call_arguments",
    "call_error",
    "canonical_arguments",
    "json_depth",
    "message_fields",
    "normal_name",
    "parse_arguments",
    "read_messages",
    "strict_decoder",
    "tool_fields",
]
