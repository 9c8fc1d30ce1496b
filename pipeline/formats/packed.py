"""Formats decoded in Python by one Arrow UDF: msgpack maps, and Avro as framed by Kafka's serializers."""

import json
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final

import msgpack
import pyarrow as pa
from fastavro import parse_schema, schemaless_reader
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DataType, StringType, StructField, StructType

from ...config.errors import ConfigError
from ..land.parse_rules import ErrorClass
from ..tables.types import as_nullable
from . import ERROR_BYTES_MAX, READABLE, error_columns, null_field_cases
from .arrow_rows import arrow_struct, columns
from .avro_types import AvroSchemaError, readable_schema, spark_type

Decode = Callable[[bytes], Any]

_PARSED: Final = "_parsed"
_RETURNED: Final = ["value", "error_class", "error"]
_AVRO_PREFIX: Final = 5
"""Magic byte 0 and a schema id of four bytes."""
_DECODE_ERRORS: Final = (
    ArithmeticError, AttributeError, EOFError, LookupError, RecursionError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""The errors that decoders raise for invalid bytes."""


def _decoded(values: pa.Array, decode: Decode, kind: pa.StructType) -> pa.Array:
    """Decode one batch: (value, error_class, error) for each value, all null for null."""
    given = values.to_pylist()
    errors: list[str | None] = [None] * len(given)
    classes: list[str | None] = [None] * len(given)
    try:
        rows = [None if each is None else decode(each) for each in given]
    except _DECODE_ERRORS:
        # Rare: decode one by one.
        rows = _one_by_one(given, decode, errors, classes)
    value = columns(rows, kind, errors)
    wrong = any(errors)
    for index, row in enumerate(rows if None in rows else ()):
        if row is None and given[index] is not None and errors[index] is None:
            errors[index], wrong = "a map is wanted, not null", True
    if not wrong:
        none = pa.nulls(len(given), pa.string())
        return pa.StructArray.from_arrays([value, none, none], names=_RETURNED)
    for index, error in enumerate(errors):
        if error is not None:
            errors[index] = _short(error)
            classes[index] = classes[index] or str(ErrorClass.SCHEMA)
    texts = [pa.array(each, type=pa.string()) for each in (classes, errors)]
    return pa.StructArray.from_arrays([value, *texts], names=_RETURNED)


def _one_by_one(
    given: list[bytes | None], decode: Decode, errors: list[str | None], classes: list[str | None]
) -> list[Any]:
    rows: list[Any] = []
    for index, each in enumerate(given):
        try:
            rows.append(None if each is None else decode(each))
        except _DECODE_ERRORS as error:
            rows.append(None)
            errors[index], classes[index] = f"{type(error).__name__}: {error}", str(ErrorClass.DECODE)
    return rows


def _short(text: str) -> str:
    return text.encode(errors="replace")[:ERROR_BYTES_MAX].decode(errors="ignore")


def _unpack(value: bytes) -> Any:  # noqa: ANN401 - any msgpack value
    return msgpack.unpackb(value, timestamp=3, strict_map_key=False)


class _ArrowUdfFormat:
    """Base of both formats: one Arrow UDF, then a check of the fields that must not be null."""

    def __init__(self, schema: StructType, decode: Decode) -> None:
        self._schema = schema
        self._decode = decode
        self.value_type: DataType = as_nullable(schema)

    def parse(self, frame: DataFrame) -> DataFrame:
        kind = arrow_struct(self._schema)
        decode = self._decode

        # The annotations determine its kind. The declared overloads require the kind as an argument too, which causes a
        # warning at run time.
        udf: Any = arrow_udf

        def parsed(values: pa.Array) -> pa.Array:
            return _decoded(values, decode, kind)

        returned = StructType(
            [
                StructField("value", self.value_type),
                StructField("error_class", StringType()),
                StructField("error", StringType()),
            ]
        )
        columns_before = [F.col(f"`{name}`") for name in frame.columns]
        frame = frame.withColumn(_PARSED, udf(parsed, returned)(F.col(READABLE)))
        found = F.col(_PARSED)
        value = found.getField("value")
        wrong = [found.getField("error_class"), found.getField("error")]
        missing = null_field_cases(value, self._schema)
        if missing:
            wrong = [F.coalesce(*pair) for pair in zip(wrong, error_columns(missing), strict=True)]
        return frame.select(
            *columns_before, value.alias("value"), wrong[0].alias("error_class"), wrong[1].alias("error")
        )


class MsgpackFormat(_ArrowUdfFormat):
    """One msgpack map per record, read into the fields of a schema like a JSON object."""

    def __init__(self, schema: StructType) -> None:
        super().__init__(schema, _unpack)
        self.schema_text: str = schema.json()


class AvroFormat(_ArrowUdfFormat):
    """One Avro record, written with the declared schema, after the five-byte prefix of Kafka's serializers."""

    def __init__(self, text: str) -> None:
        """Raise ConfigError when the schema cannot be read, or has types that no table can hold."""
        try:
            schema = spark_type(text)
            readable = readable_schema(text)
            _ = parse_schema(readable)
        except (AvroSchemaError, *_DECODE_ERRORS) as error:
            raise ConfigError([f"schema: {error}"]) from error
        super().__init__(schema, _AvroDecode(readable))
        self.schema_text: str = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


class _AvroDecode:
    """Decodes with a schema that each process parses once, because the parsed form cannot be pickled."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401 - parsed from JSON
        self._schema = schema
        self._parsed: Any = None

    def __getstate__(self) -> Any:  # noqa: ANN401
        return self._schema

    def __setstate__(self, schema: Any) -> None:  # noqa: ANN401
        self._schema, self._parsed = schema, None

    def __call__(self, value: bytes) -> Any:  # noqa: ANN401
        if self._parsed is None:
            self._parsed = parse_schema(self._schema)
        if len(value) < _AVRO_PREFIX or value[0] != 0:
            raise ValueError("magic byte 0 and a schema id of four bytes are wanted at the beginning")
        stream = BytesIO(value)
        _ = stream.seek(_AVRO_PREFIX)
        found = schemaless_reader(stream, self._parsed, None)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
        return found
