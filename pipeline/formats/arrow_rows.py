"""Converts Python objects to Arrow columns, strictly. Arrow alone would silently truncate 1.5 to 1 for an integer
field."""

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.types import DataType, DecimalType, StructType, TimestampNTZType

from ..tables.types import PLAIN, arrow_type

Objects = Sequence[Any]
_INTEGER: Final = frozenset({int})
_ALLOWED: Final[tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...]] = (
    (pa.types.is_boolean, frozenset({bool})),
    (pa.types.is_integer, _INTEGER),
    (pa.types.is_floating, frozenset({float, int})),
    (pa.types.is_string, frozenset({str})),
    (pa.types.is_large_string, frozenset({str})),
    (pa.types.is_binary, frozenset({bytes})),
    (pa.types.is_large_binary, frozenset({bytes})),
    # Integers are microseconds since 1970.
    (pa.types.is_timestamp, frozenset({dt.datetime, int})),
    # Integers are days since 1970.
    (pa.types.is_date32, frozenset({dt.date, int})),
    (pa.types.is_decimal, frozenset({decimal.Decimal, int})),
    (pa.types.is_struct, frozenset({dict})),
    (pa.types.is_list, frozenset({list, tuple})),
    (pa.types.is_large_list, frozenset({list, tuple})),
    (pa.types.is_map, frozenset({dict})),
)
_NONE: Final = type(None)
ARROW_ERRORS: Final = (ArithmeticError, TypeError, ValueError)
"""The errors that Arrow raises when an object does not fit."""


class MisfitError(ValueError):
    """An object that does not fit its field."""


_SCALARS: Final[dict[type[DataType], pa.DataType]] = {**PLAIN, TimestampNTZType: pa.timestamp("us")}


def arrow_struct(schema: StructType) -> pa.StructType:
    """Return the Arrow struct of these columns."""
    return cast(pa.StructType, arrow_type(schema, "value", _SCALARS))


def is_column_type(kind: DataType) -> bool:
    """Whether Python objects can be converted to columns of this type, which must not be nested."""
    return isinstance(kind, DecimalType) or type(kind) in _SCALARS


def check(values: Objects, kind: pa.DataType, name: str) -> None:
    """Check that Arrow can convert these values without changing them. `name` is the field's, for the error.

    Raises:
        MisfitError: names the field and the types it got.
    """
    types = set(map(type, values))
    types.discard(_NONE)
    allowed = next((types for is_kind, types in _ALLOWED if is_kind(kind)), None)
    if allowed is None:
        raise MisfitError(f"{name}: fields of type {kind} cannot be read")
    if not types <= allowed:
        given = ", ".join(sorted(each.__name__ for each in types - allowed))
        raise MisfitError(f"{name or 'the value'}: {_wanted(kind)} is wanted, not {given}")
    if pa.types.is_struct(kind):
        _check_struct([value for value in values if value is not None], kind, name)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        check(list(chain.from_iterable(value for value in values if value is not None)), kind.value_type, f"{name}[]")
    elif pa.types.is_map(kind):
        there = [value for value in values if value is not None]
        check(list(chain.from_iterable(there)), kind.key_type, f"{name}.keys")
        check(list(chain.from_iterable(value.values() for value in there)), kind.item_type, f"{name}[]")


def _check_struct(values: Objects, kind: pa.StructType, name: str) -> None:
    for field in kind.fields:
        label = f"{name}.{field.name}" if name else field.name
        check([value.get(field.name) for value in values], field.type, label)


def _wanted(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "a map"
    return "an array" if pa.types.is_list(kind) or pa.types.is_large_list(kind) else str(kind)


def columns(rows: list[Any], kind: pa.StructType, errors: list[str | None]) -> pa.Array:
    """Convert the rows (dicts, or None) to one struct array. A row that does not fit becomes null, and its message goes
    into `errors`.

    Bad rows are found by bisection, so one bad row among thousands costs little.
    """
    try:
        return _struct(rows, kind)
    except ARROW_ERRORS as error:
        if len(rows) == 1:
            errors[0] = _sentence(rows[0], kind, error)
            return pa.nulls(1, kind)
    middle = len(rows) // 2
    first, second = errors[:middle], errors[middle:]
    halves = [columns(rows[:middle], kind, first), columns(rows[middle:], kind, second)]
    errors[:] = first + second
    return pa.concat_arrays(halves)


def _struct(rows: list[Any], kind: pa.StructType) -> pa.Array:
    types = set(map(type, rows))
    if not types <= {dict, _NONE}:
        raise MisfitError(f"a map is wanted, not {', '.join(sorted(each.__name__ for each in types - {dict, _NONE}))}")
    absent = None
    if _NONE in types:
        absent = pa.array([row is None for row in rows], type=pa.bool_())
        rows = [{} if row is None else row for row in rows]
    arrays: list[pa.Array] = []
    for field in kind.fields:
        values = [row.get(field.name) for row in rows]
        check(values, field.type, field.name)
        arrays.append(pa.array(values, type=field.type))
    return pa.StructArray.from_arrays(arrays, fields=kind.fields, mask=absent)


def _sentence(row: object, kind: pa.StructType, error: BaseException) -> str:
    """Return the error message, with the field's name if Arrow did not give it."""
    if isinstance(error, MisfitError) or not isinstance(row, dict):
        return str(error)
    for field in kind.fields:
        try:
            _ = pa.array([row.get(field.name)], type=field.type)
        except ARROW_ERRORS as of_field:
            return f"{field.name}: {of_field}"
    return str(error)
