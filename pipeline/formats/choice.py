"""Selects a topic's format by its name in the settings."""

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from ...config.errors import ConfigError
from . import Format, RawFormat
from .arrow_rows import is_column_type
from .text import JsonFormat, VariantFormat


def choose(name: str, schema: str, *, writer: str) -> Format:
    """Return the format `name` with the declared schema: Spark's DDL, or Avro's JSON. Needs a running Spark session.

    Raises:
        ConfigError: the format does not exist, the writer does not support it, or the schema cannot be read.
    """
    match name:
        case "raw":
            return RawFormat()
        case "json":
            return JsonFormat(_declared(schema))
        case "msgpack":
            from .packed import MsgpackFormat

            return MsgpackFormat(_declared(schema))
        case "avro":
            from .packed import AvroFormat

            return AvroFormat(schema)
        case "variant":
            if writer != "delta-jvm":
                raise ConfigError(['format = "variant" needs writer = "delta-jvm": delta-rs has no such type'])
            return VariantFormat()
        case _:
            raise ConfigError([f"format = {name!r}: there are raw, json, variant, msgpack and avro"])


def _declared(schema: str) -> StructType:
    try:
        found = StructType.fromDDL(schema)
    except PySparkException as error:
        raise ConfigError([f"schema: {str(error).splitlines()[0]}"]) from error
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigError(["schema: columns are wanted, as in: id long, name string"])
    problems = list(_unfit(found, ""))
    if problems:
        raise ConfigError(problems)
    return found


def _unfit(kind: DataType, place: str) -> list[str]:
    match kind:
        case StructType():
            names = [field.name.lower() for field in kind.fields]
            twice = sorted({name for name in names if names.count(name) > 1})
            found = [
                f"schema: {place or 'it'} has several fields {name!r} (capitals make no difference)" for name in twice
            ]
            for field in kind.fields:
                found += _unfit(field.dataType, f"{place}.{field.name}" if place else field.name)
            return found
        case ArrayType():
            return _unfit(kind.elementType, f"{place}[]")
        case MapType():
            wrong = [] if isinstance(kind.keyType, StringType) else [f"schema: {place}: keys of maps are strings"]
            return wrong + _unfit(kind.valueType, f"{place}[]")
        case _:
            return [] if is_column_type(kind) else [f"schema: {place}: {kind.simpleString()} has no column type here"]
