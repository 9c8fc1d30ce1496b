"""Translates the settings into the limits that the router's components declare, in their units."""

from collections.abc import Callable

from ...config import handover
from ...config.model import KafkaSettings, Settings
from ...producer.accumulator.partitioners import KeylessPartitioner, RoundRobinPartitioner, StickyPartitioner
from ..leases.bus import BusSettings
from ..sessions.listener import ListenerLimits
from ..sessions.ports import IntakeLimits
from ..spool.identity import SpoolIdentity


def intake_limits(settings: Settings) -> IntakeLimits:
    limits = settings.limits
    told = {
        "frame_bytes_max": int(limits.frame_bytes_max),
        "unanswered_bytes_max": int(limits.unanswered_bytes_max),
        "unanswered_records_max": limits.unanswered_records_max,
        "header_count_max": limits.header_count_max,
    }
    return IntakeLimits(
        told,
        limits.header_count_max,
        settings.kafka.max_block_ms / 1_000,
        settings.kafka.partitioner_ignore_keys or settings.kafka.partitioner_class is not None,
        settings.spool.when_full == "reject",
        settings.audit.topic if settings.audit.enabled else None,
    )


def listener_limits(settings: Settings) -> ListenerLimits:
    limits = settings.limits
    return ListenerLimits(
        frame_bytes_max=int(limits.frame_bytes_max),
        sessions_max=limits.sessions_max,
        sessions_per_uid_max=limits.sessions_per_uid_max,
        unanswered_bytes_max=int(limits.unanswered_bytes_max),
        unanswered_records_max=limits.unanswered_records_max,
        unread_answers_bytes_max=int(limits.unread_answers_bytes_max),
        first_message_s=limits.first_message_ms / 1_000,
        message_s=limits.message_ms / 1_000,
    )


def bus_settings(settings: Settings, identity: SpoolIdentity, expiration_ms: int) -> BusSettings:
    return BusSettings(
        path=settings.bus_path,
        journal_dir=settings.journal_dir,
        shards=settings.shards,
        start=identity.start,
        spool_id=identity.spool_id,
        settings_digest=handover.digest(settings),
        expiration_ms=expiration_ms,
        silence_ms=settings.timeouts.shard_silence_ms,
    )


def keyless_choice(kafka: KafkaSettings, draw: Callable[[], int]) -> Callable[[], KeylessPartitioner]:
    """Factory for the keyless partitioner of each topic. `draw` returns random numbers of 31 bits."""
    if kafka.partitioner_class is not None:
        return RoundRobinPartitioner
    return lambda: StickyPartitioner(kafka.batch_size, draw)


def has_record_ids(settings: Settings, topic: str) -> bool:
    """Whether the records of a topic carry the id header. Records of the audit topic never do."""
    audit = settings.audit
    return audit.enabled and topic != audit.topic and handover.topic_settings(settings, topic).audit


def preferred_rack(kafka: KafkaSettings) -> str:
    """The rack whose leaders are preferred, or "". Round robin, as in Java, ignores racks."""
    return kafka.client_rack if kafka.partitioner_rack_aware and kafka.partitioner_class is None else ""
