"""Arrow schemas derived from the record classes, never from the first rows.

So an empty file and a column of nothing but ``None`` have the same types as any other file, and files
of one record class can be joined.
"""

from __future__ import annotations

import types
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, PlainSerializer

if TYPE_CHECKING:
    import pyarrow


def arrow_schema(record: type[BaseModel]) -> pyarrow.Schema:
    """Schema of ``record`` as its JSON form has it: times and free-form ``meta`` are strings.

    Raises ``TypeError`` naming the class and field whose type has no Arrow counterpart.
    """
    import pyarrow as pa

    return pa.schema(_fields(record))


def _fields(model: type[BaseModel]) -> list[pyarrow.Field]:
    import pyarrow as pa

    columns = []
    for name, field in model.model_fields.items():
        if any(isinstance(part, PlainSerializer) for part in field.metadata):
            columns.append(pa.field(name, pa.string()))  # Meta: written as JSON text
            continue
        try:
            columns.append(pa.field(name, _arrow_type(field.annotation)))
        except TypeError as error:
            raise TypeError(f"{model.__name__}.{name}: {error}") from None
    return columns


def _arrow_type(annotation: Any) -> pyarrow.DataType:
    import pyarrow as pa

    simple = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(), datetime: pa.string()}
    if annotation in simple:
        return simple[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _arrow_type(arguments[0])
    if origin is Literal:
        (kind,) = {type(choice) for choice in arguments}
        return _arrow_type(kind)
    if origin in (Union, types.UnionType):
        some = [part for part in arguments if part is not types.NoneType]
        if len(some) == 1:
            return _arrow_type(some[0])
    if origin is tuple and len({part for part in arguments if part is not Ellipsis}) == 1:
        return pa.list_(_arrow_type(arguments[0]))
    if origin is list:
        return pa.list_(_arrow_type(arguments[0]))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct(_fields(annotation))
    raise TypeError(f"no Arrow type for {annotation}")
