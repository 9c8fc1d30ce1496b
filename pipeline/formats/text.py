"""JSON, read into declared columns or into Spark's variant, with column expressions only: no Python code per record."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructField, StructType, VariantType

from ..land.parse_rules import ErrorClass
from ..tables.types import as_nullable_columns
from . import READABLE, error_columns, null_field_cases

_CORRUPT: Final = "_penstock_corrupt"
_TEXT: Final = "_text"
_PARSED: Final = "_parsed"
_WRAPPED: Final = "_penstock_value"
_END: Final = "_penstock_end"
_WITH_END: Final = 2
"""Elements of the array: the value, and the end marker."""

NOT_UTF8: Final = "not UTF-8"
NOT_JSON: Final = "not one JSON value"
NOT_FITTING: Final = "JSON that does not fit the declared schema"


def _text() -> Column:
    """Wrap the value in an array with an end marker, which proves that the parser read the array to its end.

    Jackson reads one value and ignores the rest: it would accept `{…} and more`, and between brackets alone also `{…}]
    and more`.
    """
    readable = F.col(READABLE)
    end = f',{{"{_END}":true}}]'
    return F.when(readable.isNotNull(), F.concat(F.lit("["), readable.cast(StringType()), F.lit(end)))


class JsonFormat:
    """One JSON object per record, read into the fields of a schema.

    Read like Spark's `from_json` in mode PERMISSIVE: absent fields become null, undeclared fields are dropped, a value
    of another type is an error.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self.value_type: StructType = as_nullable_columns(schema)
        self.schema_text: str = schema.json()

    def parse(self, frame: DataFrame) -> DataFrame:
        either = StructType([*self.value_type.fields, StructField(_END, BooleanType())])
        wrapper = StructType([StructField(_WRAPPED, ArrayType(either)), StructField(_CORRUPT, StringType())])
        wrapped = F.concat(F.lit(f'{{"{_WRAPPED}":'), F.col(_TEXT), F.lit("}"))
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        columns = list(frame.columns)
        frame = frame.withColumn(_TEXT, _text()).withColumn(_PARSED, F.from_json(wrapped, wrapper, options))
        parsed = F.col(_PARSED)
        found = parsed.getField(_WRAPPED)
        only = F.get(found, F.lit(0))
        there = F.col(READABLE).isNotNull()
        whole = (
            parsed.getField(_CORRUPT).isNull()
            & (F.size(found) == _WITH_END)
            & only.isNotNull()
            & F.get(found, F.lit(1)).getField(_END)
        )
        read = F.when(there & F.coalesce(whole, F.lit(False)), only.dropFields(_END))
        frame = frame.select(*columns, _TEXT, read.alias("value"))
        value = F.col("value")
        wrong = there & value.isNull()
        cases = [
            (there & ~F.is_valid_utf8(F.col(_TEXT)), ErrorClass.DECODE, NOT_UTF8),
            (wrong & ~_is_one_value(F.try_parse_json(F.col(_TEXT))), ErrorClass.DECODE, NOT_JSON),
            (wrong, ErrorClass.SCHEMA, NOT_FITTING),
            *null_field_cases(value, self._schema),
        ]
        return frame.select(*columns, "value", *error_columns(cases))


def _is_one_value(array: Column) -> Column:
    """Whether a variant is an array of one value and the end marker."""
    first = F.try_variant_get(array, "$[0]", "variant")
    end = F.try_variant_get(array, f"$[1].{_END}", "boolean")
    more = F.try_variant_get(array, f"$[{_WITH_END}]", "variant")
    return F.coalesce(array.isNotNull() & first.isNotNull() & end & more.isNull(), F.lit(False))


class VariantFormat:
    """Any JSON value, read into Spark's variant: for data without a schema yet."""

    schema_text = ""

    @property
    def value_type(self) -> DataType:
        return VariantType()

    def parse(self, frame: DataFrame) -> DataFrame:
        columns = list(frame.columns)
        frame = frame.withColumn(_TEXT, _text()).withColumn(_PARSED, F.try_parse_json(F.col(_TEXT)))
        there = F.col(READABLE).isNotNull()
        cases = [
            (there & ~F.is_valid_utf8(F.col(_TEXT)), ErrorClass.DECODE, NOT_UTF8),
            (there & ~_is_one_value(F.col(_PARSED)), ErrorClass.DECODE, NOT_JSON),
        ]
        value = F.try_variant_get(F.col(_PARSED), "$[0]", "variant")
        return frame.select(*columns, value.alias("value"), *error_columns(cases))
