"""What the audit asks of Kafka and of `land`'s checkpoints: the audit topic, how far `land` has read, where the logs begin and end.

The order of the questions is part of the proof. How far `land` is, and what Kafka has deleted, is asked before the tables' versions
are fixed: what is below has its row in them by then. The audit topic is read after that, and the ends of the logs last: they must
not be older than the acknowledgements that they are compared with.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast

from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from ..config.pipeline import PipelineSettings
from ..config.pipeline_kafka import connector_options
from ..runtime import logs
from . import lag_group
from .checkpoint import Checkpoint
from .kafka_admin import KafkaNotAskedError, KafkaUnreachableError, Offsets, asking
from .land_batch import apps
from .names import bronze_table
from .schemas import PARTITION_BY
from .tables import Tables

TIMEOUT_S: Final = 30.0
_HOURS: Final = StructType([StructField(name, StringType()) for name in PARTITION_BY])
"""Of a bronze table only its log is read here; the schema of its values does not matter."""


class Source(Protocol):
    """What is not in the tables. Partitions that nothing is known of are left out of the answers."""

    def landed_to(self) -> Offsets:
        """Offsets that `land` reads next; everything below is in the tables."""
        ...

    def log_starts(self) -> Offsets:
        """First offsets that Kafka still has."""
        ...

    def records(self) -> DataFrame:
        """The audit topic: `key` and `value`, both binary."""
        ...

    def records_most(self) -> int | None:
        """So many records the audit topic has at most; None: that is not known."""
        ...

    def log_ends(self) -> Offsets:
        """Offsets behind the last record that Kafka has."""
        ...


class KafkaSource:
    """The brokers and checkpoints of the settings."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings, tables: Tables) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables

    def landed_to(self) -> Offsets:
        found = lag_group.positions(self._settings)
        for topic in self._settings.topics:
            for partition, offset in self._checkpointed(topic).items():
                known = found.setdefault(topic, {})
                known[partition] = max(offset, known.get(partition, 0))
        return found

    def _checkpointed(self, topic: str) -> Mapping[int, int]:
        """The end of the last batch that is whole in both tables."""
        checkpoint = Checkpoint(self._spark, f"{self._settings.checkpoints.rstrip('/')}/land/{topic}")
        query = checkpoint.query_id()
        if query is None:
            return {}
        table = self._tables.table(bronze_table(topic), _HOURS, PARTITION_BY)
        newest = table.transaction(apps(query)[0])
        if newest is None:
            return {}
        # Spark notes a batch when both commits are made; the next one does not begin before.
        batch = newest.version if checkpoint.finished(newest.version) else newest.version - 1
        text = checkpoint.offsets(batch)
        if text is None:
            return {}
        ends = cast("dict[str, dict[str, int]]", json.loads(text))
        return {int(partition): offset for partition, offset in ends.get(topic, {}).items()}

    def log_starts(self) -> Offsets:
        return self._listed(OffsetSpec.EARLIEST, self._settings.topics)

    def log_ends(self) -> Offsets:
        return self._listed(OffsetSpec.LATEST, self._settings.topics)

    def records_most(self) -> int | None:
        topic = self._settings.audit.topic
        ends = self._listed(OffsetSpec.LATEST, [topic]).get(topic)
        return None if ends is None else sum(ends.values())

    def _listed(self, which: int, topics: Iterable[str]) -> Offsets:
        """Of all records, committed or not: what stands behind an open transaction was acknowledged nevertheless."""
        found: dict[str, dict[int, int]] = {}
        try:
            with asking(self._settings.kafka, timeout_s=TIMEOUT_S) as admin:
                there = set(admin.list_topics())
                wanted = [topic for topic in topics if topic in there]
                places = {
                    TopicPartition(topic["name"], part["partition_index"]): which
                    for topic in (admin.describe_topics(wanted) if wanted else [])
                    for part in topic["partitions"]
                }
                answers = admin.list_partition_offsets(places) if places else {}
        except (KafkaUnreachableError, KafkaNotAskedError) as error:
            _ = logs.get().warning("log_ends_not_read", reason=str(error))
            return {}
        for place, answer in answers.items():
            if answer.offset >= 0:
                found.setdefault(place.topic, {})[place.partition] = answer.offset
        return found

    def records(self) -> DataFrame:
        reader = self._spark.read.format("kafka")
        for name, value in connector_options(self._settings.kafka).items():
            reader = reader.option(name, value)
        reader = reader.option("subscribe", self._settings.audit.topic)
        reader = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest")
        reader = reader.option("kafka.isolation.level", "read_committed")
        # Compaction and retention take records away while they are read. What was replaced is not missed, what was not leaves a gap
        # in the books.
        reader = reader.option("failOnDataLoss", "false")
        return reader.load().select("key", "value")


def rows_of(offsets: Offsets) -> list[tuple[Any, ...]]:
    """Topic, partition, offset."""
    return [
        (topic, partition, offset) for topic, partitions in offsets.items() for partition, offset in partitions.items()
    ]
