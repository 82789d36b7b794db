"""Column types that SQLite and PostgreSQL keep alike, and the columns that many tables share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, Column, ForeignKey, ForeignKeyConstraint, Integer, MetaData
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

BIG: Final = BigInteger().with_variant(Integer, "sqlite")
"""A row number: only ``INTEGER`` counts up by itself in SQLite, where it has 64 bits, too."""


class Moment(TypeDecorator[datetime]):
    """An aware time as whole microseconds since 1970, UTC.

    SQLite has no type for times and would drop the zone; a number sorts and compares alike in both.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """To microseconds. Raises ``ValueError`` for a time without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; use datetime.now(UTC)")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """Back to an aware time, exactly."""
        return None if value is None else _EPOCH + value * _MICROSECOND


# Names by rule, so that later migrations can name what they change.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def row_id() -> Column[Any]:
    """The number of a row."""
    return Column("id", BIG, primary_key=True, autoincrement=True)


def refers(name: str, target: str, *, null: bool = False, part: bool = False, **more: Any) -> Column[Any]:
    """A row number of ``target``. ``part``: the row goes with that one; otherwise it stands in the way."""
    key = ForeignKey(f"{target}.id", ondelete="CASCADE" if part else None)
    return Column(name, BIG, key, nullable=null, **more)


def of_project(column: str, target: str) -> ForeignKeyConstraint:
    """The row of ``target`` with this id, in the same project."""
    return ForeignKeyConstraint(["project_id", column], [f"{target}.project_id", f"{target}.id"])


def created() -> Column[Any]:
    """When the row was written."""
    return Column("created", Moment, nullable=False)
