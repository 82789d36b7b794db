"""A method and its settings as text: ``NAME`` or ``NAME:setting=value,setting=value``.

The command line, the gateway and Python read the same text: ``beam:width=4,expand=4`` is a search,
``mc:rollouts=8`` a labeller. Names may be written with ``-`` or ``_``. The parts of a list are joined by
``+``, and fields of nested settings are written with dots: ``mc:estimate.kind=hard``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from surefoot.errors import RunError, unknown

M = TypeVar("M")


def parse_method(text: str, methods: Mapping[str, type[M]], *, what: str) -> M:
    """The settings of the method that ``text`` names; ``methods`` has a pydantic class or data class by name.

    Raises ``RunError`` for an unknown method or setting, a repeated setting, or an invalid value; the message
    starts with ``text``.
    """
    name, settings = method_words(text)
    kinds = {dashed(key): kind for key, kind in methods.items()}
    kind = kinds.get(dashed(name))
    if kind is None:
        raise RunError(f"{text!r}: {unknown(what, name, kinds)}")
    values: dict[str, Any] = {}
    for setting, value in settings:
        _insert(values, kind, setting, value, text=text, name=name)
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = dashed(".".join(map(str, first["loc"])))
        message = first["msg"].removeprefix("Value error, ")
        sentence = f"{where}: {message}" if where else message
        if first["type"] == "missing":
            sentence = f"write {name}:{where}=…"
        elif first["type"] == "literal_error":
            sentence = (
                f"{where} is {first['input']!r}; choose {first['ctx']['expected'].replace(chr(39), '')}"
            )
        raise RunError(f"{text!r}: {sentence}") from error


def method_words(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name in a method's text, and its settings with their values. Raises ``RunError``."""
    name, _, settings = text.partition(":")
    pairs = [part.partition("=") for part in settings.split(",")] if settings else []
    for setting, equals, _ in pairs:
        if not equals:
            raise RunError(f"{text!r}: write {setting!r} as SETTING=VALUE")
    return name, [(setting, value) for setting, _, value in pairs]


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a list: ``a:x=1,y=2,b`` is ``a:x=1,y=2`` and ``b``."""
    methods: list[str] = []
    for part in text.split(","):
        if methods and "=" in part.partition(":")[0]:
            methods[-1] += f",{part}"
        else:
            methods.append(part)
    return tuple(methods)


def method_text(name: str, settings: BaseModel) -> str:
    """The text of the method ``name`` with the settings that differ from their defaults, in their order.

    :func:`parse_method` reads it as ``settings``, and equal settings have the same text.
    """
    changed = ",".join(_changed(settings, ""))
    return f"{name}:{changed}" if changed else name


def dashed(name: str) -> str:
    """A name as it is written on the command line."""
    return name.replace("_", "-")


def _insert(values: dict[str, Any], kind: type, setting: str, value: str, *, text: str, name: str) -> None:
    """Set the field that ``setting`` names, in ``values`` of the class ``kind``."""
    first, _, below = setting.replace("-", "_").partition(".")
    annotations: dict[str, Any] = get_type_hints(kind)
    if issubclass(kind, BaseModel):
        annotations = {name: info.annotation for name, info in kind.model_fields.items()}
    if first not in annotations:
        raise RunError(f"{text!r}: {unknown(f'setting of {name}', setting, annotations)}")
    annotation = annotations[first]
    nested = isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))
    if below and nested:
        _insert(values.setdefault(first, {}), annotation, below, value, text=text, name=name)
    elif below:
        raise RunError(f"{text!r}: {first!r} holds no settings")
    elif nested:
        raise RunError(f"{text!r}: {first!r} holds settings: write {first}.SETTING=VALUE")
    elif first in values:
        raise RunError(f"{text!r}: {setting} is set twice")
    else:
        values[first] = value.split("+") if get_origin(annotation) in (tuple, list) else value


def _changed(settings: BaseModel, above: str) -> Iterator[str]:
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value == info.get_default(call_default_factory=True, validated_data={}):
            continue
        if isinstance(value, BaseModel):
            yield from _changed(value, f"{above}{name}.")
        elif isinstance(value, tuple | list):
            yield f"{above}{name}={'+'.join(map(str, value))}"
        else:
            yield f"{above}{name}={str(value).lower() if isinstance(value, bool) else value}"
