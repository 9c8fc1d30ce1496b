"""Column types of Spark, Arrow and Delta, and the rules by which a table's schema may grow."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .interface import TableSchemaError
from .partitions import Value, partition_text

PLAIN: Final[dict[type[DataType], pa.DataType]] = {
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    DateType: pa.date32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    ShortType: pa.int16(),
    StringType: pa.string(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}
PARTITION_TYPES: Final = (StringType, IntegerType, LongType, DateType)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of data files, all columns nullable. Raise TableSchemaError for a type that delta-rs cannot
    write."""
    return pa.schema([pa.field(field.name, arrow_type(field.dataType, field.name)) for field in schema])


def arrow_type(
    kind: DataType, column: str, plain: Mapping[type[DataType], pa.DataType] = MappingProxyType(PLAIN)
) -> pa.DataType:
    """Return the type of one column; `plain` has the types that are not nested. Raise TableSchemaError."""
    match kind:
        case StructType():
            return pa.struct(
                [pa.field(part.name, arrow_type(part.dataType, f"{column}.{part.name}", plain)) for part in kind]
            )
        case ArrayType():
            return pa.list_(arrow_type(kind.elementType, column, plain))
        case MapType():
            return pa.map_(arrow_type(kind.keyType, column, plain), arrow_type(kind.valueType, column, plain))
        case DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case _ if type(kind) in plain:
            return plain[type(kind)]
        case _:
            raise TableSchemaError(
                f"column {column} has the type {kind.simpleString()}, which the writer delta-rs does not have: "
                f'declare another one, or use writer = "delta-jvm"'
            )


def as_nullable_columns(schema: StructType) -> StructType:
    """Return the same columns, nullable at any depth: one frame's non-null columns must not restrict other frames."""
    return StructType([StructField(field.name, as_nullable(field.dataType), nullable=True) for field in schema])


def as_nullable(kind: DataType) -> DataType:
    """Like `as_nullable_columns`, for one type."""
    match kind:
        case StructType():
            return as_nullable_columns(kind)
        case ArrayType():
            return ArrayType(as_nullable(kind.elementType), containsNull=True)
        case MapType():
            return MapType(as_nullable(kind.keyType), as_nullable(kind.valueType), valueContainsNull=True)
        case _:
            return kind


def declared_columns(df: DataFrame, schema: StructType, name: str) -> DataFrame:
    """Return the frame's columns in the declared order. Raise TableSchemaError for a column that is not declared."""
    lacking = missing_columns(as_nullable_columns(schema), df.schema, name)
    if lacking.fields:
        raise TableSchemaError(f"table {name} is not declared with {[field.name for field in lacking]}")
    return df.select(*(f"`{field.name}`" for field in schema if field.name in df.columns))


def partition_values(where: Mapping[str, str], partition_by: tuple[str, ...], name: str) -> dict[str, Value]:
    """Return the partitions that are to be replaced, as in Delta's log. Raise ValueError for other columns."""
    if not where or not set(where) <= set(partition_by):
        raise ValueError(f"{sorted(where)} are not partition columns of {name}")
    return {column: partition_text(value) for column, value in where.items()}


def missing_columns(table: StructType, wanted: StructType, name: str) -> StructType:
    """Return the wanted columns, and fields of struct columns, that the table lacks. A struct that grows contains only
    its new fields.

    Raise TableSchemaError when a column differs in type or in upper and lower case.
    """
    return StructType(_missing_fields(as_nullable_columns(table), as_nullable_columns(wanted), name, ""))


def _missing_fields(have: StructType, want: StructType, name: str, prefix: str) -> list[StructField]:
    found: list[StructField] = []
    known = {field.name: field.dataType for field in have}
    spelt = {field.name.lower(): field.name for field in have}
    for field in want:
        if field.name not in known:
            if other := spelt.get(field.name.lower()):
                raise TableSchemaError(
                    f"table {name} has {prefix}{other}, and {prefix}{field.name} differs from it in capitals only: "
                    "tables make no difference there; write it as the table does"
                )
            found.append(field)
            continue
        old, new = known[field.name], field.dataType
        if isinstance(old, StructType) and isinstance(new, StructType):
            if grown := _missing_fields(old, new, name, f"{prefix}{field.name}."):
                found.append(StructField(field.name, StructType(grown), nullable=True))
        elif old != new:
            raise TableSchemaError(
                f"table {name} has {prefix}{field.name} as {old.simpleString()}, not as {new.simpleString()}: "
                f"a column keeps its type; give the new one another name, or start another table"
            )
    return found
