"""Formats of topic values: how they are parsed, and the resulting column type.

A format reads the column `readable` (the value's bytes; null where there is nothing to parse) and adds `value`,
`error_class` and `error`. All three are null where `readable` is null. `value` is meaningless where `error_class` is
not null.
"""

from typing import Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import BinaryType, DataType, StringType, StructType

from ..land.parse_rules import ErrorClass

READABLE: Final = "readable"
ERROR_BYTES_MAX: Final = 1_024


class Format(Protocol):
    """How one topic's values are parsed."""

    @property
    def value_type(self) -> DataType:
        """Type of the column `value` in bronze."""
        ...

    @property
    def schema_text(self) -> str:
        """The declared schema in canonical form: schemas that differ only in whitespace have the same text. Empty
        without a schema."""
        ...

    def parse(self, frame: DataFrame) -> DataFrame:
        """Return the frame with `value`, `error_class` and `error`, without helper columns of the format."""
        ...


class RawFormat:
    """No parsing: `value` is the record's bytes."""

    schema_text = ""

    @property
    def value_type(self) -> DataType:
        return BinaryType()

    def parse(self, frame: DataFrame) -> DataFrame:
        none = F.lit(None).cast(StringType())
        return frame.withColumns({"value": F.col(READABLE), "error_class": none, "error": none})


def error_columns(cases: list[tuple[Column, ErrorClass, str]]) -> list[Column]:
    """Return the columns `error_class` and `error` from the first case that holds; null if none does."""
    classes: Column | None = None
    errors: Column | None = None
    for condition, error_class, text in cases:
        named, said = F.lit(str(error_class)), F.lit(text)
        classes = F.when(condition, named) if classes is None else classes.when(condition, named)
        errors = F.when(condition, said) if errors is None else errors.when(condition, said)
    assert classes is not None
    assert errors is not None
    return [classes.alias("error_class"), errors.alias("error")]


def required_fields(schema: StructType, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of the fields declared NOT NULL, parents before children; fields inside arrays and maps are left out."""
    found: list[tuple[str, ...]] = []
    for field in schema.fields:
        path = (*prefix, field.name)
        if not field.nullable:
            found.append(path)
        if isinstance(field.dataType, StructType):
            found += required_fields(field.dataType, path)
    return found


def null_field_cases(value: Column, schema: StructType) -> list[tuple[Column, ErrorClass, str]]:
    """Cases for `error_columns`: a field declared NOT NULL is null in an existing value.

    A field inside a nullable struct is checked only where that struct is not null.
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
