"""`retire`: declares that a permanently lost daemon will send nothing more.

It writes the heartbeat that a clean shutdown would have written. Records that were pending then count as lost, listed
by id, and hours can be sealed. If the daemon is alive after all, its later records have a higher version and take
precedence again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from ..api.errors import PenstockError
from ..config.pipeline import PipelineSettings
from ..config.pipeline_kafka import JAVA_ONLY
from ..producer.direct.producer import DirectProducer
from ..wire.audit_records import CLOSED, AuditHeartbeat, AuditRecord, decode
from ..wire.errors import FrameError
from .failures import JobRefusedError
from .kafka_admin import admin_client, python_settings, unreachable

_POLL_MS: Final = 1_000
_INTERVALS: Final = 3
"""A daemon may only be gone after missing this many heartbeats."""


@dataclass(slots=True)
class KnownIncarnation:
    """The audit topic's information about an incarnation."""

    newest: AuditRecord
    partition: int
    version_max: int
    """Highest version of all its records."""
    heartbeat: AuditHeartbeat | None = None
    """The newest heartbeat."""


class Retired(NamedTuple):
    heartbeat: AuditHeartbeat
    written: bool
    """False: the incarnation was already closed."""


def retire(settings: PipelineSettings, incarnation: str, *, now_ms: int, force: bool, timeout_s: float) -> Retired:
    """Write the closing heartbeat of an incarnation (12 hex digits).

    Raises:
        JobRefusedError: it is unknown, or its daemon may be alive and `force` is not set.
        KafkaUnreachableError, JavaOnlyKafkaError: Kafka cannot be reached.
    """
    known = find_incarnation(settings, incarnation, timeout_s=timeout_s)
    if known is None:
        raise JobRefusedError(
            f"no daemon {incarnation} has written to {settings.audit.topic}: the audit's report shows those that have"
        )
    heartbeat = known.heartbeat
    if heartbeat is not None and heartbeat.state == CLOSED:
        return Retired(heartbeat, written=False)
    newest = known.newest
    interval_s = 0.0 if heartbeat is None else heartbeat.interval_s
    age_s = max((now_ms - newest.sent_at) / 1_000, 0.0)
    if age_s < max(settings.audit.heartbeat_stale, _INTERVALS * interval_s) and not force:
        raise JobRefusedError(
            f"the daemon {incarnation} on {newest.host} gave a sign of life {age_s:.0f} s ago: it may be alive, and what it still "
            "has would be called lost. Stop it, or wait, or say --force"
        )
    closing = AuditHeartbeat(
        incarnation=incarnation,
        host=newest.host,
        version=known.version_max + 1,
        sent_at=now_ms,
        era=newest.era,
        # No more records will be accepted. `settled_before` keeps the daemon's last value.
        closed_before=now_ms,
        settled_before=0 if heartbeat is None else heartbeat.settled_before,
        state=CLOSED,
        interval_s=interval_s,
    )
    _write(settings, closing, known.partition, timeout_s=timeout_s)
    return Retired(closing, written=True)


def find_incarnation(settings: PipelineSettings, incarnation: str, *, timeout_s: float) -> KnownIncarnation | None:
    """Return the known facts about an incarnation, or None. Reads the whole audit topic up to its current end.

    Raises:
        JobRefusedError: the audit topic does not exist.
        KafkaUnreachableError, JavaOnlyKafkaError: Kafka cannot be reached.
    """
    topic = settings.audit.topic
    with admin_client(settings.kafka, timeout_s=timeout_s) as admin:
        if topic not in admin.list_topics():
            raise JobRefusedError(f"Kafka has no topic {topic}, or does not show it to this user (audit.topic)")
    milliseconds = max(int(timeout_s * 1_000), 1_000)
    found: KnownIncarnation | None = None
    try:
        consumer: Any = KafkaConsumer(
            **python_settings(settings.kafka),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=milliseconds,
        )
    except (KafkaError, OSError) as error:
        raise unreachable(settings.kafka, error) from error
    try:
        for record in _records(consumer, topic):
            found = _newer(found, record, incarnation)
    except (KafkaError, OSError) as error:
        raise unreachable(settings.kafka, error) from error
    finally:
        consumer.close()
    return found


def _newer(known: KnownIncarnation | None, record: Any, incarnation: str) -> KnownIncarnation | None:  # noqa: ANN401 - kafka-python's
    """Return the known facts, updated by this record."""
    if not (record.key or b"").startswith(f"{incarnation}|".encode()):
        return known
    try:
        said = decode(record.key, record.value)
    except FrameError:
        # A tombstone, or not one of our records. The audit reports invalid records.
        return known
    if known is None:
        known = KnownIncarnation(said, record.partition, said.version)
    if said.version >= known.version_max:
        known.newest, known.partition, known.version_max = said, record.partition, said.version
    if isinstance(said, AuditHeartbeat) and (known.heartbeat is None or said.version >= known.heartbeat.version):
        known.heartbeat = said
    return known


def _records(consumer: Any, topic: str) -> Any:  # noqa: ANN401 - kafka-python is not typed
    """Yield all records that the topic holds now, from all partitions."""
    parts = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    ends: Mapping[TopicPartition, int] = consumer.end_offsets(parts)
    while any(consumer.position(part) < ends[part] for part in parts):
        for records in consumer.poll(timeout_ms=_POLL_MS).values():
            yield from records


def _write(settings: PipelineSettings, closing: AuditHeartbeat, partition: int, *, timeout_s: float) -> None:
    kafka = settings.kafka.model_dump(by_alias=True, exclude_unset=True, exclude={"java"})
    config = {name: value for name, value in kafka.items() if name not in JAVA_ONLY and value is not None}
    try:
        producer = DirectProducer(config, client_id="penstock-pipeline-retire", acks="all")
        try:
            future = producer.send(settings.audit.topic, closing.encode(), closing.key(), partition=partition)
            _ = future.result(timeout_s)
        finally:
            producer.close(timeout_s)
    except PenstockError as error:
        raise JobRefusedError(
            f"the closing heartbeat could not be written to {settings.audit.topic}: {error}"
        ) from error
