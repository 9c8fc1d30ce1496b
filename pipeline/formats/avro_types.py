"""Converts Avro schemas to Spark types (Avro 1.12 specification, sections on complex and logical types)."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

Schema = Any
"""A schema parsed from JSON: a name, an object, or a list (a union)."""

_PRIMITIVE: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
    ("long", "local-timestamp-millis"): TimestampNTZType(),
    ("long", "local-timestamp-micros"): TimestampNTZType(),
}
_PRECISION_MAX: Final = 38
_WIDER: Final = (({"int", "long"}, "long"), ({"float", "double"}, "double"))
"""Unions that Spark reads as one wider type."""


class AvroSchemaError(ValueError):
    """A schema that a table cannot have. The message names the place and the reason."""


def spark_type(text: str) -> StructType:
    """Return the type of a record's values, nullable where the schema has a union with null.

    Raises:
        AvroSchemaError: not a schema of one record, or one with types that tables cannot hold.
    """
    found = _AvroSchemaReader().read(_loaded(text), "the schema")
    if not isinstance(found, StructType):
        raise AvroSchemaError("the schema is not one of a record")
    return found


def readable_schema(text: str) -> Schema:
    """Return the schema without the logical types that land as their underlying type (times of day, UUIDs)."""
    return _stripped(_loaded(text))


def _loaded(text: str) -> Schema:
    try:
        return json.loads(text)
    except ValueError as error:
        raise AvroSchemaError(f"the schema is not JSON: {error}") from error


def _stripped(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [_stripped(each) for each in cast("list[Schema]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _stripped(value) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
    }
    logical = kept.get("logicalType")
    if logical is not None and logical != "decimal" and (kept.get("type"), logical) not in _LOGICAL:
        del kept["logicalType"]
    return kept


class _AvroSchemaReader:
    """Reads a schema and resolves names: a type may be referred to by name after its definition."""

    def __init__(self) -> None:
        self._named: dict[str, DataType | None] = {}

    def read(self, schema: Schema, place: str, namespace: str = "") -> DataType:
        match schema:
            case str():
                return self._of_name(schema, place, namespace)
            case list():
                return self._of_union(cast("list[Schema]", schema), place, namespace)[0]
            case dict():
                return self._of_object(cast("dict[str, Any]", schema), place, namespace)
            case _:
                raise AvroSchemaError(f"{place}: {schema!r} is no type of Avro")

    def _of_name(self, name: str, place: str, namespace: str) -> DataType:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]
        full = _full_name(name, namespace)
        if full not in self._named:
            raise AvroSchemaError(f"{place}: no type {name!r} was defined before it")
        found = self._named[full]
        if found is None:
            raise AvroSchemaError(f"{place}: {name!r} contains itself, which no table can hold")
        return found

    def _of_union(self, branches: list[Schema], place: str, namespace: str) -> tuple[DataType, bool]:
        """Return the type, and whether null is one of the branches."""
        there = [each for each in branches if each != "null"]
        nullable = len(there) < len(branches)
        names = {each for each in there if isinstance(each, str)}
        for together, wider in _WIDER:
            if len(there) == len(together) and names == together:
                return _PRIMITIVE[wider], nullable
        if len(there) != 1:
            raise AvroSchemaError(
                f"{place}: a union of several types (beside null) has no column type; int with long and float with double have"
            )
        return self.read(there[0], place, namespace), nullable

    def _of_object(self, schema: Mapping[str, Any], place: str, namespace: str) -> DataType:
        kind = schema.get("type")
        if kind not in ("record", "enum", "fixed", "array", "map"):
            return _with_logical(str(kind), schema, self.read(kind, place, namespace))
        match kind:
            case "array":
                element, nullable = self._inner(schema.get("items"), f"{place}[]", namespace)
                return ArrayType(element, nullable)
            case "map":
                element, nullable = self._inner(schema.get("values"), f"{place}[]", namespace)
                return MapType(StringType(), element, nullable)
            case _:
                return self._of_named(str(kind), schema, place, namespace)

    def _of_named(self, kind: str, schema: Mapping[str, Any], place: str, namespace: str) -> DataType:
        name = schema.get("name")
        if not isinstance(name, str):
            raise AvroSchemaError(f"{place}: a {kind} has a name")
        full = _full_name(name, str(schema.get("namespace", namespace)))
        self._named[full] = None
        if kind == "record":
            found: DataType = self._of_record(schema, full, full.rpartition(".")[0])
        else:
            found = _with_logical(kind, schema, _PRIMITIVE[kind])
        self._named[full] = found
        return found

    def _of_record(self, schema: Mapping[str, Any], place: str, namespace: str) -> StructType:
        fields: list[StructField] = []
        for field in cast("list[dict[str, Any]]", schema.get("fields", [])):
            kind, nullable = self._inner(field.get("type"), f"{place}.{field.get('name')}", namespace)
            fields.append(StructField(str(field.get("name")), kind, nullable))
        if not fields:
            raise AvroSchemaError(f"{place}: a record without fields has no columns")
        return StructType(fields)

    def _inner(self, schema: Schema, place: str, namespace: str) -> tuple[DataType, bool]:
        if isinstance(schema, list):
            return self._of_union(cast("list[Schema]", schema), place, namespace)
        return self.read(schema, place, namespace), False


def _with_logical(kind: str, schema: Mapping[str, Any], plain: DataType) -> DataType:
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
        if not 0 <= scale <= precision <= _PRECISION_MAX or precision == 0:
            raise AvroSchemaError(f"decimal({precision}, {scale}): columns hold 1 to {_PRECISION_MAX} digits")
        return DecimalType(precision, scale)
    return _LOGICAL.get((kind, str(logical)), plain)


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
