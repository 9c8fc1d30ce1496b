"""The audit's queries to Kafka and to `land`'s checkpoints: the audit topic, how far `land` has read, and where the
logs start and end.

The order of the queries is part of the proof. `land`'s position and the log starts are read before the tables' versions
are fixed: every record below these offsets has its row in the tables by then. The audit topic is read next. The log
ends are read last: they must not be older than the acknowledgements they are compared with.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, cast

from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from ...config.pipeline import PipelineSettings
from ...config.pipeline_kafka import connector_options
from ...runtime import logs
from ..kafka_admin import JavaOnlyKafkaError, KafkaUnreachableError, Offsets, admin_client
from ..land.checkpoint import Checkpoint
from ..land.lag_group import committed_offsets

TIMEOUT_S: Final = 30.0


class AuditSource(Protocol):
    """Information that is not in the tables. Results leave out partitions without information."""

    def landed_offsets(self) -> Offsets:
        """Offsets that `land` reads next; all records below are in the tables."""
        ...

    def log_starts(self) -> Offsets:
        """First offsets that Kafka still has."""
        ...

    def records(self) -> DataFrame:
        """The audit topic: `key` and `value`, both binary."""
        ...

    def records_max(self) -> int | None:
        """Upper limit of the number of records in the audit topic; None: not known."""
        ...

    def log_ends(self) -> Offsets:
        """Offsets after the last record that Kafka has."""
        ...


class KafkaAuditSource:
    """Queries the brokers and checkpoints of the settings."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        *,
        group: Callable[[PipelineSettings], Offsets] = committed_offsets,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._group = group

    def landed_offsets(self) -> Offsets:
        """Use the checkpoint where it exists: all pipelines with the same prefix share the group, and another pipeline
        may be ahead."""
        found = {topic: self._checkpointed(topic) for topic in self._settings.topics}
        if None in found.values():
            committed = self._group(self._settings)
            return {topic: committed.get(topic, {}) if ends is None else ends for topic, ends in found.items()}
        return {topic: ends for topic, ends in found.items() if ends is not None}

    def _checkpointed(self, topic: str) -> Mapping[int, int] | None:
        """Return the end of the last batch that Spark has recorded as finished; both its commits exist by then. None
        when there is no checkpoint."""
        checkpoint = Checkpoint(self._spark, f"{self._settings.checkpoints.rstrip('/')}/land/{topic}")
        if checkpoint.query_id() is None:
            return None
        batch = checkpoint.last_finished()
        text = None if batch is None else checkpoint.offsets(batch)
        if text is None:
            return {}
        ends = cast("dict[str, dict[str, int]]", json.loads(text))
        return {int(partition): offset for partition, offset in ends.get(topic, {}).items()}

    def log_starts(self) -> Offsets:
        return self._list_offsets(OffsetSpec.EARLIEST, self._settings.topics)

    def log_ends(self) -> Offsets:
        return self._list_offsets(OffsetSpec.LATEST, self._settings.topics)

    def records_max(self) -> int | None:
        topic = self._settings.audit.topic
        ends = self._list_offsets(OffsetSpec.LATEST, [topic]).get(topic)
        return None if ends is None else sum(ends.values())

    def _list_offsets(self, which: int, topics: Iterable[str]) -> Offsets:
        """Offsets of all records, committed or not: records after the start of an open transaction have been
        acknowledged too."""
        found: dict[str, dict[int, int]] = {}
        try:
            with admin_client(self._settings.kafka, timeout_s=TIMEOUT_S) as admin:
                there = set(admin.list_topics())
                wanted = [topic for topic in topics if topic in there]
                places = {
                    TopicPartition(topic["name"], part["partition_index"]): which
                    for topic in (admin.describe_topics(wanted) if wanted else [])
                    for part in topic["partitions"]
                }
                answers = admin.list_partition_offsets(places) if places else {}
        except (KafkaUnreachableError, JavaOnlyKafkaError) as error:
            _ = logs.get().warning("log_offsets_read_failed", reason=str(error))
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
        # Compaction and retention may remove records during the read. A replaced record is not needed; any other
        # removed record leaves a gap in the audit counts.
        reader = reader.option("failOnDataLoss", "false")
        return reader.load().select("key", "value")
