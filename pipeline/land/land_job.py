"""`land`: writes topics to tables, each record to exactly one row of `bronze_<topic>` or `quarantine`.

Each topic has one query with its own checkpoint. One driver runs all of them.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from ...config.pipeline import PipelineSettings
from ...config.pipeline_kafka import connector_options
from .. import schemas
from ..failures import failure_message
from ..names import QUARANTINE, bronze_table
from ..tables import Tables
from .batches import BatchObserver, LandError, MicroBatchWriter, NullBatchObserver, transaction_apps
from .checkpoint import Checkpoint
from .topic import LandTopic, topics_of

StreamSource = Callable[[SparkSession, str], DataFrame]
"""Returns the stream of a topic, with the columns of Spark's Kafka connector, including `headers`."""

_POLL_S: Final = 0.1


class LandJob:
    """The queries of all topics of the settings. For one thread."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        tables: Tables,
        *,
        source: StreamSource | None = None,
        steps: BatchObserver | None = None,
        new_query: bool = False,
    ) -> None:
        """`new_query`: start even if the tables have rows of another query, whose checkpoint is lost. Those rows stay,
        and all records that are still in Kafka land a second time."""
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._source = source
        self._observer = steps or NullBatchObserver()
        self._new_query = new_query
        self._stopping = False
        self._running: list[tuple[LandTopic, MicroBatchWriter, StreamingQuery]] = []

    @property
    def queries(self) -> tuple[StreamingQuery, ...]:
        """The started queries, one per topic, in the order of the settings."""
        return tuple(query for _, _, query in self._running)

    def start(self, *, once: bool | None = None) -> tuple[StreamingQuery, ...]:
        """Start the queries. `once`: land the records that the topics hold now, then end; None: as in the settings.

        Raises:
            ConfigError: lists the problems; nothing was started.
            LandError: a table has rows of another query; nothing was started.
        """
        topics = topics_of(self._settings)
        once = self._settings.land.is_once if once is None else once
        source = self._source or kafka_source(self._settings, once=once)
        for topic in topics:
            self._refuse_foreign_tables(topic)
        for topic in topics:
            batches = MicroBatchWriter(topic, self._tables, Checkpoint(self._spark, topic.checkpoint), self._observer)
            frame = topic.with_observation(topic.read(source(self._spark, topic.name)))
            writer = (
                frame.writeStream.queryName(topic.query_name)
                .option("checkpointLocation", topic.checkpoint)
                .foreachBatch(batches.write)
            )
            writer = (
                writer.trigger(availableNow=True)
                if once
                else writer.trigger(processingTime=self._settings.land.trigger)
            )
            self._running.append((topic, batches, writer.start()))
        return self.queries

    def wait(self, *, seconds: float | None = None) -> bool:
        """Wait until all queries have ended (True) or the timeout expires (False).

        Raises:
            LandError: a query failed; the others have finished their current batch and ended.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        pause = threading.Event()
        while any(query.isActive for query in self.queries):
            self._raise_failure()
            left = until - time.monotonic()
            if left <= 0:
                return False
            _ = pause.wait(min(_POLL_S, left))
        self._raise_failure()
        return True

    def stop(self, *, seconds: float = 60.0) -> None:
        """Let every query finish its current batch, for at most this long, then stop it. An interrupted batch is
        replayed."""
        self._stopping = True
        until = time.monotonic() + seconds
        for _, batches, _ in self._running:
            batches.close()
        pause = threading.Event()
        while busy := [query for query in self.queries if query.isActive]:
            for query in busy:
                if time.monotonic() >= until or not query.status["isTriggerActive"]:
                    query.stop()
            _ = pause.wait(_POLL_S)

    def _raise_failure(self) -> None:
        for topic, batches, query in self._running:
            error = None if query.isActive else query.exception()
            if error is None or (self._stopping and batches.failure is None):
                continue
            self.stop(seconds=self._settings.stop_timeout)
            raise batches.failure or LandError(f"{topic.name}: {failure_message(error)}")

    def _refuse_foreign_tables(self, topic: LandTopic) -> None:
        """Refuse a table with rows of another query. After a deleted checkpoint a new query would land all records that
        Kafka still has again."""
        if self._new_query:
            return
        query = Checkpoint(self._spark, topic.checkpoint).query_id()
        bronze = self._tables.table(
            bronze_table(topic.name), schemas.bronze(topic.format.value_type), schemas.PARTITION_BY
        )
        quarantine = self._tables.table(QUARANTINE, schemas.QUARANTINE, schemas.PARTITION_BY)
        if query is not None and bronze.transaction(transaction_apps(query)[0]) is not None:
            return
        of_topic = quarantine.read().where(F.col("topic") == topic.name)
        if not bronze.read().isEmpty() or not of_topic.isEmpty():
            what = "has no checkpoint there yet" if query is None else "has written none of them"
            raise LandError(
                f"{topic.name}: {bronze.name} or {quarantine.name} has rows of another query, and the one of {topic.checkpoint} {what}: "
                "everything that is still in Kafka would land a second time. Give back the checkpoint that was used, or say that "
                "this is wanted (land --new-query)"
            )


def kafka_source(settings: PipelineSettings, *, once: bool) -> StreamSource:
    """Return streams from Spark's Kafka connector with the options of the settings. Raise ConfigError when a secrets
    file cannot be used."""
    land = settings.land
    options = connector_options(settings.kafka) | {
        "kafka.isolation.level": land.isolation,
        "includeHeaders": "true",
        "startingOffsets": land.starting_offsets,
        "failOnDataLoss": str(land.fail_on_data_loss).lower(),
        "maxOffsetsPerTrigger": str(land.max_offsets_per_trigger),
        "groupIdPrefix": "penstock-land",
    }
    if land.min_offsets_per_trigger and not once:
        options |= {
            "minOffsetsPerTrigger": str(land.min_offsets_per_trigger),
            "maxTriggerDelay": land.max_trigger_delay,
        }

    def stream(spark: SparkSession, topic: str) -> DataFrame:
        return spark.readStream.format("kafka").options(**options).option("subscribe", topic).load()

    return stream
