"""What the values of a topic are: how they are parsed, and into what type of column.

A format takes the column `readable` (the value's bytes; null where there is nothing to parse) and adds `value`, `error_class` and
`error`. Where `readable` is null all three are; where `error_class` is not, `value` means nothing.
"""

from typing import Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from ..land.parse_rules import ErrorClass

READABLE: Final = "readable"
ERROR_BYTES_MAX: Final = 1_024


class Format(Protocol):
    """How one topic's values are read."""

    @property
    def value_type(self) -> DataType:
        """Of the column `value` in bronze."""
        ...

    @property
    def schema_text(self) -> str:
        """The declared schema in a spelling of its own: two that differ only in spaces have the same. Empty without a schema."""
        ...

    def parse(self, frame: DataFrame) -> DataFrame:
        """The frame with `value`, `error_class` and `error`, and without columns of the format's own."""
        ...


def error_columns(cases: list[tuple[Column, ErrorClass, str]]) -> list[Column]:
    """The columns `error_class` and `error`: of the first case that holds, null if none does."""
    classes: Column | None = None
    errors: Column | None = None
    for condition, error_class, text in cases:
        named, said = F.lit(str(error_class)), F.lit(text)
        classes = F.when(condition, named) if classes is None else classes.when(condition, named)
        errors = F.when(condition, said) if errors is None else errors.when(condition, said)
    assert classes is not None
    assert errors is not None
    return [classes.alias("error_class"), errors.alias("error")]


def as_nullable(kind: DataType) -> DataType:
    """The type with everything nullable, as tables have it: what must not be null is checked when a record is read."""
    match kind:
        case StructType():
            return as_nullable_struct(kind)
        case ArrayType():
            return ArrayType(as_nullable(kind.elementType))
        case MapType():
            return MapType(as_nullable(kind.keyType), as_nullable(kind.valueType))
        case _:
            return kind


def as_nullable_struct(schema: StructType) -> StructType:
    """The same of a struct."""
    return StructType([StructField(field.name, as_nullable(field.dataType)) for field in schema.fields])


def required_fields(schema: StructType, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the fields that are declared NOT NULL, parents before children; none inside arrays and maps."""
    found: list[tuple[str, ...]] = []
    for field in schema.fields:
        path = (*prefix, field.name)
        if not field.nullable:
            found.append(path)
        if isinstance(field.dataType, StructType):
            found += required_fields(field.dataType, path)
    return found


def null_field_cases(value: Column, schema: StructType) -> list[tuple[Column, ErrorClass, str]]:
    """Cases for `error_columns`: a field that is declared NOT NULL and is null in a value that is there.

    A field inside a struct that may itself be null is asked for only where that struct is there.
    """
    cases: list[tuple[Column, ErrorClass, str]] = []
    for path in required_fields(schema):
        field, parent = value, value
        for name in path:
            parent, field = field, field.getField(name)
        cases.append(
            (
                parent.isNotNull() & field.isNull(),
                ErrorClass.SCHEMA,
                f"{'.'.join(path)} is missing, and must not be null",
            )
        )
    return cases
