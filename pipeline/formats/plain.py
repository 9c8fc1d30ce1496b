"""Values without parsing."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, DataType, StringType

from . import READABLE


class RawFormat:
    """No parsing: `value` is the record's bytes."""

    schema_text = ""

    @property
    def value_type(self) -> DataType:
        return BinaryType()

    def parse(self, frame: DataFrame) -> DataFrame:
        none = F.lit(None).cast(StringType())
        return frame.withColumns({"value": F.col(READABLE), "error_class": none, "error": none})
