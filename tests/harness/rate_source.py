"""A stream that is the same whenever it is read, with the columns of Spark's Kafka connector: what record n is follows from n.

Spark's `rate-micro-batch` numbers the records; all else is column expressions over the number.
"""

from typing import Final

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

INCARNATION: Final = "0123456789ab"
PARTITIONS: Final = 3
START_MS: Final = 1_795_345_200_000
EVERY: Final = {"foreign": 10, "header": 51, "broken": 21, "tombstone": 25, "misfit": 37}
"""Each n-th record is one of these, the first that holds; the others are good and have an id."""


def kind_of(number: int) -> str:
    """What record `number` is."""
    return next((kind for kind, every in EVERY.items() if number % every == every - 1), "good")


def rate_source(spark: SparkSession, topic: str, *, rows: int, fail_every: int = 0) -> DataFrame:
    """Batches of `rows` records. `fail_every`: each so-manyth task raises at its first attempt."""
    frame = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=2).load()
    if fail_every:
        frame = frame.withColumn("value", _failing(fail_every)(F.col("value")))
    number = F.col("value")
    kinds = {kind: number % every == every - 1 for kind, every in EVERY.items()}
    kind = F.lit("good")
    for name, holds in reversed(kinds.items()):
        kind = F.when(holds, F.lit(name)).otherwise(kind)
    frame = frame.select(number.alias("n"), kind.alias("kind"))
    n = F.col("n")
    fields = [
        (F.lit(1), 2),
        (F.lit(INCARNATION), 0),
        (n % PARTITIONS, 6),
        (F.floor(n / PARTITIONS), 14),
        (START_MS + n, 12),
    ]
    text = F.concat(*(F.lpad(F.hex(value), digits, "0") if digits else value for value, digits in fields))
    identity = F.unhex(F.when(F.col("kind") == "header", F.substring(text, 1, 20)).otherwise(text))
    header = F.struct(F.lit("penstock").alias("key"), identity.alias("value"))
    value = F.when(F.col("kind") == "broken", F.lit("{")).when(F.col("kind") == "misfit", F.lit('{"id": "x"}'))
    value = value.when(F.col("kind") != "tombstone", F.format_string('{"id": %d}', n))
    return frame.select(
        F.lit(None).cast("binary").alias("key"),
        value.cast("binary").alias("value"),
        F.lit(topic).alias("topic"),
        (n % PARTITIONS).cast("int").alias("partition"),
        F.floor(n / PARTITIONS).alias("offset"),
        F.timestamp_millis(START_MS + n).alias("timestamp"),
        F.when(F.col("kind") != "foreign", F.array(header)).alias("headers"),
    )


def _failing(every: int):  # noqa: ANN202 - Spark's own type of a function
    def passed(values):  # noqa: ANN001, ANN202
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() == 0 and len(values) and (values[0].as_py() // len(values)) % every == every - 1:
            raise RuntimeError("this attempt of a task was to fail")
        return values

    return arrow_udf(passed, "long")
