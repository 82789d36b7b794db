"""Tables from data classes: one declaration gives the table, the frozen data and the mapping between them.

A field of a data class is a column; its annotation gives the type, ``Annotated`` adds keys and references.
Columns that must stay in the database (hashes) or that only queries need are passed to ``table`` separately.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import sqlalchemy as sa
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticSerializationError
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator, TypeEngine

from surefoot.errors import NotFoundError, StoreError

T = TypeVar("T")

LONGEST_NAME: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# Systematic names of constraints, so that errors name them in both databases.
METADATA: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

BIG: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""A row number. SQLite generates values for ``INTEGER`` keys only, which have 64 bits there."""


class Moment(TypeDecorator[datetime]):
    """An aware time as whole microseconds since 1970, UTC.

    SQLite does not have a type for times and would drop the zone; a number sorts alike in both databases.
    """

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """To microseconds. Raises ``ValueError`` for a time without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} lacks a time zone; use datetime.now(UTC)")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Back to an aware time, exactly."""
        return None if value is None else _EPOCH + value * _MICROSECOND


class Json(TypeDecorator[Any]):
    """A value of a type that pydantic can read, as JSON text."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To JSON text. Raises ``StoreError`` for what JSON cannot hold."""
        try:
            return None if value is None else json_text(_adapter(self.kind).dump_python(value, mode="json"))
        except PydanticSerializationError as error:
            raise StoreError(f"not JSON: {error}") from error

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """The value, validated."""
        return None if value is None else _adapter(self.kind).validate_json(value)


class Mark(Enum):
    """What the annotation of a field says about its column."""

    KEY = "part of the primary key"
    INDEXED = "has an index"
    UNIQUE = "its values differ"
    COMPUTED = "not a column: a query computes or joins it"


RowId = Annotated[int, Mark.KEY]
"""The number of a row."""
UserId = Annotated[int, sa.ForeignKey("users.id")]
ProjectId = Annotated[int, sa.ForeignKey("projects.id")]
Count = Annotated[int, sa.Integer()]


def table(name: str, data: type, *parts: SchemaItem, **options: Any) -> sa.Table:
    """The table of a data class; ``parts`` are its constraints, indices and further columns."""
    hints = get_type_hints(data, include_extras=True)
    columns = [_column(field.name, hints[field.name]) for field in fields(data)]
    return sa.Table(name, METADATA, *(column for column in columns if column is not None), *parts, **options)


def of_project(column: str, target: str) -> sa.ForeignKeyConstraint:
    """The row of ``target`` with this id, in the same project."""
    return sa.ForeignKeyConstraint(["project_id", column], [f"{target}.project_id", f"{target}.id"])


def as_data(kind: type[T], row: sa.RowMapping, **computed: Any) -> T:
    """A data class from a row that has its columns; ``computed`` gives fields that the row lacks."""
    return kind(**{name: row[name] for name in _names(cast("Any", kind)) if name not in computed}, **computed)


def rows_of(connection: sa.Connection, kind: type[T], query: sa.Executable) -> list[T]:
    """Data classes from the rows of a query."""
    return [as_data(kind, row) for row in connection.execute(query).mappings()]


def one_of(connection: sa.Connection, kind: type[T], query: sa.Executable, missing: str) -> T:
    """A data class from the one row of a query. Raises ``NotFoundError`` that says ``missing``."""
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFoundError(missing)
    return as_data(kind, row)


def inserted(connection: sa.Connection, data: type[T], into: sa.Table, /, **values: Any) -> T:
    """Add a row, and return it with what the database fills in."""
    return as_data(data, connection.execute(sa.insert(into).values(values).returning(into)).mappings().one())


def matching(source: sa.Table, /, **values: Any) -> list[sa.ColumnElement[bool]]:
    """Conditions that columns of ``source`` have these values; ``None`` sets no condition."""
    return [source.c[name] == value for name, value in values.items() if value is not None]


def columns_of(kind: type, source: sa.Table) -> list[sa.Column[Any]]:
    """The columns of ``source`` that are fields of ``kind``."""
    return [source.c[name] for name in _names(kind) if name in source.c]


def checked_text(field: str, value: str) -> str:
    """``value``, if both databases can keep it.

    Raises ``StoreError`` for a zero character, which PostgreSQL refuses, and for half a surrogate pair.
    """
    if "\x00" in value:
        raise StoreError(f"'{field}' contains a NUL character (U+0000); remove it")
    if not storable(value):
        raise StoreError(f"'{field}' is not valid text: it contains half of a surrogate pair")
    return value


def storable(value: str) -> bool:
    """Whether ``checked_text`` would accept ``value``."""
    return "\x00" not in value and (value.isascii() or not _SURROGATE.search(value))


def checked_name(field: str, value: str) -> str:
    """``value``, if it is a name: not blank, at most 200 characters (an index cannot hold much more)."""
    if not value.strip():
        raise StoreError(f"'{field}' is empty")
    if len(value) > LONGEST_NAME:
        raise StoreError(f"'{field}' has {len(value)} characters; the limit is {LONGEST_NAME}")
    return checked_text(field, value)


def payload_of(record: BaseModel) -> str:
    """JSON of ``record`` for a payload column; NUL characters are escaped in it, so they can be stored."""
    try:
        return record.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise StoreError(f"a {type(record).__name__} cannot be written as JSON: {error}") from error


def json_text(value: Any) -> str:
    """Compact ASCII JSON with sorted keys. Raises ``StoreError`` for objects that JSON does not have."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"not JSON: {error}") from error


def digest_of(*parts: Any) -> str:
    """32 hexadecimal characters that identify ``parts``: equal digests mean the same content."""
    return hashlib.blake2b(json_text(parts).encode(), digest_size=16).hexdigest()


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _column(name: str, hint: Any) -> sa.Column[Any] | None:
    marks: list[Any] = []
    optional = False
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            marks += hint.__metadata__
            hint = hint.__origin__
        else:
            optional = True
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if Mark.COMPUTED in marks:
        return None
    explicit = [mark for mark in marks if isinstance(mark, TypeEngine)]
    # a reference is used for one column only, and an alias such as UserId for many
    keys = [
        sa.ForeignKey(mark.target_fullname, ondelete=mark.ondelete)
        for mark in marks
        if isinstance(mark, sa.ForeignKey)
    ]
    return sa.Column(
        name,
        explicit[0] if explicit else _type(hint),
        *keys,
        primary_key=Mark.KEY in marks,
        nullable=optional,
        index=Mark.INDEXED in marks or None,
        unique=Mark.UNIQUE in marks or None,
    )


def _type(hint: Any) -> TypeEngine[Any]:
    simple: dict[Any, TypeEngine[Any]] = {
        bool: sa.Boolean(),
        int: BIG,
        float: sa.Float(),
        str: sa.Text(),
        datetime: Moment(),
    }
    if hint in simple:
        return simple[hint]
    if get_origin(hint) is Literal:
        return sa.String(16) if isinstance(get_args(hint)[0], str) else sa.Integer()
    return Json(hint)
