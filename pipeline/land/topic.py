"""One topic of `land`: its tables, and how its records are read."""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from ...config.errors import ConfigError
from ...config.pipeline import PipelineSettings, PipelineTopicSettings
from ..formats import READABLE, Format
from ..formats.choice import choose
from ..names import check_topics
from . import id_header
from .parse_rules import ErrorClass, ParseRules

METRICS: Final = "land"
"""Name of the metrics that Spark observes in every batch: `rows`, `bad` and `foreign`."""
_SEEN: Final = "_seen"
_FOREIGN_PLACE: Final = "_foreign_place"


@dataclass(frozen=True, slots=True)
class LandTopic:
    """How to land one topic."""

    name: str
    checkpoint: str
    rules: ParseRules
    format: Format
    dedupe_window_s: float | None

    @property
    def query_name(self) -> str:
        return f"land/{self.name}"

    def read(self, frame: DataFrame) -> DataFrame:
        """Parse records from Spark's Kafka connector into the columns of both tables, except those that are set per
        batch.

        `error_class` is null in rows that belong to bronze; in these rows `raw` is null too.
        """
        frame = id_header.split(frame, newer_ids=self.rules.newer_ids)
        if self.dedupe_window_s is not None:
            frame = _drop_duplicates(frame, self.dedupe_window_s)
        frame = frame.withColumnsRenamed({"value": "raw", "timestamp": "kafka_ts"})
        size, size_max = F.octet_length(F.col("raw")), self.rules.record_bytes_max
        readable = F.col("header_error").isNull() & (size <= size_max)
        frame = self.format.parse(frame.withColumn(READABLE, F.when(readable, F.col("raw"))))
        too_large = F.concat(F.lit("a value of "), size.cast(StringType()), F.lit(f" bytes; {size_max} are parsed"))
        frame = frame.withColumns(
            {
                "error_class": F.when(F.col("header_error").isNotNull(), F.lit(str(ErrorClass.HEADER)))
                .when(size > size_max, F.lit(str(ErrorClass.TOO_LARGE)))
                .otherwise(F.col("error_class")),
                "error": F.coalesce(F.col("header_error"), F.when(size > size_max, too_large), F.col("error")),
            }
        )
        frame = frame.withColumn("raw", F.when(F.col("error_class").isNotNull(), F.col("raw")))
        return frame.drop(READABLE, "header_error", "timestampType")

    def with_observation(self, frame: DataFrame) -> DataFrame:
        """Add counts to the parsed frame of a stream, for listeners to the query's progress."""
        bad = F.col("error_class").isNotNull()
        foreign = F.col("incarnation").isNull() & ~F.coalesce(
            F.col("error_class") == str(ErrorClass.HEADER), F.lit(False)
        )
        return frame.observe(
            METRICS,
            F.count(F.lit(1)).alias("rows"),
            F.count_if(bad).alias("bad"),
            F.count_if(foreign).alias("foreign"),
        )


def _drop_duplicates(frame: DataFrame, window_s: float) -> DataFrame:
    """Drop rows whose id landed less than `window_s` seconds ago.

    The watermark uses the time at which a batch was planned, which the offset log stores. By its own time, a record
    that waited in a spool for days would be late, and Spark drops rows behind the watermark.
    """
    place = F.concat_ws("-", F.col("partition").cast(StringType()), F.col("offset").cast(StringType()))
    frame = frame.withColumns(
        {_SEEN: F.current_timestamp(), _FOREIGN_PLACE: F.when(F.col("incarnation").isNull(), place)}
    )
    frame = frame.withWatermark(_SEEN, f"{int(window_s * 1_000)} milliseconds")
    frame = frame.dropDuplicatesWithinWatermark(["incarnation", "origin", "ordinal", _FOREIGN_PLACE])
    return frame.drop(_SEEN, _FOREIGN_PLACE)


def topics_of(settings: PipelineSettings) -> tuple[LandTopic, ...]:
    """Return all topics of the settings, in their order. Needs a running Spark session to parse DDL.

    Raises:
        ConfigError: lists the problems of all topics.
    """
    problems: list[str] = []
    found: list[LandTopic] = []
    for name, topic in settings.topics.items():
        try:
            found.append(_topic(settings, name, topic))
        except ConfigError as error:
            problems += [f"topics.{name}: {problem}" for problem in error.problems]
    try:
        check_topics(settings.topics)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def _topic(settings: PipelineSettings, name: str, topic: PipelineTopicSettings) -> LandTopic:
    schema = topic.schema_
    if topic.schema_file is not None:
        try:
            schema = topic.schema_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError([f"schema_file: {error}"]) from error
    chosen = choose(topic.format, schema, writer=settings.writer)
    land = settings.land
    rules = ParseRules(
        topic=name,
        format=topic.format,
        schema=chosen.schema_text,
        schema_version=topic.schema_version,
        record_bytes_max=int(land.record_bytes_max),
        newer_ids=land.newer_ids,
        dedupe=land.dedupe,
    )
    window = land.dedupe_window if land.dedupe == "watermark" else None
    return LandTopic(name, f"{settings.checkpoints.rstrip('/')}/land/{name}", rules, chosen, window)
