"""Open policies, environments and user-defined classes by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from surefoot.errors import PolicyError, SurefootError, unknown
from surefoot.extras import need
from surefoot.policies.devices import LOADING, Loading
from surefoot.protocols import Environment, Policy

if TYPE_CHECKING:
    from surefoot.policies.openai_responses import Mode

_CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Form of ``module:Class``."""


def load_policy(
    name: str | Path,
    *,
    base_url: str | None = None,
    chat: bool = False,
    dialect: Literal["openai", "vllm"] = "openai",
    concurrency: int = 16,
    timeout_s: float = 120.0,
    extra_body: Mapping[str, Any] | None = None,
    batch_size: int = 256,
    loading: Loading = LOADING,
) -> Policy:
    """A policy: a checkpoint directory or hub name in this process, or with ``base_url`` a server's model.

    ``module:Class`` is a :class:`surefoot.protocols.Policy` of one's own, called without arguments.

    ``chat``, ``dialect``, ``concurrency`` (requests in flight), ``timeout_s`` (seconds per call) and
    ``extra_body`` (goes into every request) are for a server; its key is read from ``OPENAI_API_KEY``.
    ``dialect="vllm"`` makes one call for all samples of a prompt. ``batch_size`` (samples decoded together)
    and ``loading`` are for a model in this process.

    A server is asked for its models first. Raises ``PolicyError`` if it does not answer, refuses the key or
    does not serve the model; for a checkpoint that cannot be loaded, and for a dialect without a server.
    """
    if base_url:
        from surefoot.policies.openai import OpenAIPolicy
        from surefoot.policies.probe import check_model

        mode: Mode = "chat" if chat else "completions"
        check_model(base_url, str(name), mode=mode, timeout_s=timeout_s)
        return OpenAIPolicy(
            model=str(name),
            base_url=base_url,
            mode=mode,
            dialect=dialect,
            concurrency=concurrency,
            timeout_s=timeout_s,
            extra_body=extra_body,
        )
    if dialect != "openai":
        raise PolicyError(f"dialect {dialect!r} is for a server; give its address as base_url")
    if isinstance(name, str) and _CLASS.fullmatch(name) and not Path(name).exists():
        loaded: Policy = class_named(name, {}, "policy", PolicyError)()
        return loaded
    need("torch", "a policy in this process")
    from surefoot.policies.transformers import TransformersPolicy

    return TransformersPolicy.from_pretrained(name, batch_size=batch_size, loading=loading)


def load_environment(name: str) -> Callable[[], Environment]:
    """What makes an environment: a class as ``module:Class``.

    The class is called without arguments, once for each run. Raises ``PolicyError`` for another form of name,
    a module or class that cannot be found, and a class that is not a
    :class:`surefoot.protocols.Environment`.
    """
    factory = class_named(name, {}, "environment", PolicyError)
    if not isinstance(factory(), Environment):
        raise PolicyError(f"{name!r} is not an environment: see surefoot.protocols.Environment")
    return factory


def class_named(
    name: str, known: Mapping[str, str], what: str, error: type[SurefootError]
) -> Callable[..., Any]:
    """A class by its name in ``known``, or as ``module:Class``. Raises ``error`` where there is none."""
    # Looked up by path: some lie in packages above, and each is imported only where it is used.
    module, colon, attribute = known.get(name, name).partition(":")
    if not colon:
        hint = unknown(what, name, known).partition("; ")[2] + ", or " if known else ""
        raise error(f"no {what} is called {name!r}; {hint}give module:Class")
    try:
        loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as missing:
        raise error(f"{what} {name!r} cannot be opened: {missing}") from missing
    return loaded
