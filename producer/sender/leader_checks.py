"""Checks that a leader must answer before a partition is sent: log start, end of an older leader epoch, and topic id.

* LOG_START after a grant and after a long pause. If the last acknowledged batch is no longer in the log, the broker may
  have dropped the producer state (HO-6).
* EPOCH_END after a newer leader epoch. If the old epoch ended before the acknowledged batch, that may be lost (GAP-5).
* LOG_END if EPOCH_END found that. A leader may accept our batches under an epoch that we learn of later: then they are
  behind that end, and are lost only if the whole log is shorter.
* TOPIC_ID where Produce goes by topic name, on every new connection and after an unknown topic error. A recreated topic
  of the same name would accept our batches, and its responses would not show it (IDN-8).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from ..metadata.cluster import MetadataAnswer, read_metadata
from ..protocol.error_codes import ProduceErrorClass, classify_produce_error, error_name
from ..protocol.responses import KafkaRequest
from .idempotent import IdempotentPartition
from .modes import LeaderCheck, SendMode

UNKNOWN_TOPIC_ID: Final = 100
LEAST_VERSION: Final = {
    LeaderCheck.LOG_START: 1,
    LeaderCheck.EPOCH_END: 2,
    LeaderCheck.LOG_END: 2,
    LeaderCheck.TOPIC_ID: 10,
}
"""Lowest version with the field needed. A check is skipped if the broker supports older ones only."""
_EARLIEST: Final = -2
_RETRIABLE: Final = frozenset(
    {
        ProduceErrorClass.RETRY,
        ProduceErrorClass.RETRY_REFRESH_METADATA,
        ProduceErrorClass.NEW_LEADER,
        ProduceErrorClass.CONFIRM_TOPIC,
        ProduceErrorClass.UNKNOWN,
    }
)


class LeaderCheckRequest(NamedTuple):
    """One check, for several partitions of one node."""

    check: LeaderCheck
    partitions: list[IdempotentPartition]


class LeaderCheckResult(NamedTuple):
    """The answer for one partition, or for one topic (`part` -1). `value`: an offset, or a topic id."""

    topic: str
    part: int
    code: int
    value: int | bytes


def due_checks(leases: Iterable[IdempotentPartition], node: int, *, now: float) -> list[LeaderCheckRequest]:
    """The checks to send to a node now."""
    asked = [LeaderCheckRequest(question, []) for question in LeaderCheck]
    for lease in leases:
        if lease.node != node or lease.checks_in_flight or now < lease.retry_at:
            continue
        for one in asked:
            if one.check in lease.pending_checks:
                one.partitions.append(lease)
    return [one for one in asked if one.partitions]


def request_for(asked: LeaderCheckRequest) -> KafkaRequest:
    """The Kafka request for a check; its version is not set yet."""
    if asked.check is LeaderCheck.TOPIC_ID:
        return metadata_request(sorted({lease.topic for lease in asked.partitions}))
    if asked.check is LeaderCheck.LOG_START:
        return cast("KafkaRequest", _log_starts(asked.partitions))
    return cast("KafkaRequest", _epoch_ends(asked.partitions, asked.check))


def metadata_request(names: Iterable[str]) -> KafkaRequest:
    """A Metadata request for topics that does not create them."""
    topics = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return cast("KafkaRequest", topics)


def _log_starts(leases: Sequence[IdempotentPartition]) -> ListOffsetsRequest:
    kind = ListOffsetsRequest.ListOffsetsTopic
    topics = [
        kind(
            name=name,
            partitions=[
                kind.ListOffsetsPartition(
                    partition_index=lease.index, current_leader_epoch=lease.leader_epoch, timestamp=_EARLIEST
                )
                for lease in parts
            ],
        )
        for name, parts in _by_topic(leases).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=0)


def _epoch_ends(leases: Sequence[IdempotentPartition], question: LeaderCheck) -> OffsetForLeaderEpochRequest:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = [
        kind(
            topic=name,
            partitions=[
                kind.OffsetForLeaderPartition(
                    partition=lease.index,
                    current_leader_epoch=lease.leader_epoch,
                    # The current epoch ends at the log end.
                    leader_epoch=lease.leader_epoch if question is LeaderCheck.LOG_END else _epoch_of_anchor(lease),
                )
                for lease in parts
            ],
        )
        for name, parts in _by_topic(leases).items()
    ]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


def _epoch_of_anchor(lease: IdempotentPartition) -> int:
    known = -1 if lease.anchor is None else lease.anchor.leader_epoch
    return known if known >= 0 else max(0, lease.leader_epoch - 1)


def _by_topic(leases: Sequence[IdempotentPartition]) -> dict[str, list[IdempotentPartition]]:
    found: dict[str, list[IdempotentPartition]] = {}
    for lease in leases:
        found.setdefault(lease.topic, []).append(lease)
    return found


def read_results(question: LeaderCheck, response: Any) -> list[LeaderCheckResult]:  # noqa: ANN401 - a generated class
    """Extract the results from the response to a check."""
    told: list[LeaderCheckResult] = []
    for topic in response.topics:
        match question:
            case LeaderCheck.TOPIC_ID:
                told.append(LeaderCheckResult(str(topic.name), -1, topic.error_code, topic.topic_id.bytes))
            case LeaderCheck.LOG_START:
                told += [
                    LeaderCheckResult(topic.name, part.partition_index, part.error_code, part.offset)
                    for part in topic.partitions
                ]
            case LeaderCheck.EPOCH_END | LeaderCheck.LOG_END:
                told += [
                    LeaderCheckResult(topic.topic, part.partition, part.error_code, part.end_offset)
                    for part in topic.partitions
                ]
    return told


def apply_results(asked: LeaderCheckRequest, answers: list[LeaderCheckResult], *, now: float, chance: float) -> None:
    """Apply the answers. The check of a partition without an answer is retried after a backoff."""
    found = {(told.topic, told.part): told for told in answers}
    for lease in asked.partitions:
        lease.checks_in_flight = False
        if lease.mode is SendMode.REVOKED or asked.check not in lease.pending_checks:
            continue
        index = -1 if asked.check is LeaderCheck.TOPIC_ID else lease.index
        told = found.get((lease.topic, index))
        if told is None:
            lease.back_off(now, chance)
        else:
            _apply(lease, asked.check, told, now=now, chance=chance)


def skip_check(asked: LeaderCheckRequest) -> None:
    """Complete a check that the broker does not support: its Produce responses must suffice."""
    for lease in asked.partitions:
        lease.complete_check(asked.check)


def lost(asked: LeaderCheckRequest, *, now: float, chance: float) -> None:
    """Retry a check whose connection ended before the answer."""
    apply_results(asked, [], now=now, chance=chance)


def _apply(
    lease: IdempotentPartition, question: LeaderCheck, told: LeaderCheckResult, *, now: float, chance: float
) -> None:
    if told.code != 0:
        judged = classify_produce_error(told.code, record_count=1, log_start=-1)
        if judged.error_class in _RETRIABLE:
            lease.last_error = judged.name
            lease.hint(-1, -1)
            lease.back_off(now, chance)
            return
        # Produce will be refused for the same reason; that refusal is reported.
        lease.complete_check(question)
        return
    lease.complete_check(question)
    lease.failures = 0
    lease.retry_at = 0.0
    anchor = lease.anchor
    if isinstance(told.value, bytes):
        if lease.topic_id is not None and told.value != lease.topic_id:
            text = f"{error_name(UNKNOWN_TOPIC_ID)}: {lease.topic} was deleted and made again"
            lease.halt(UNKNOWN_TOPIC_ID, text)
    elif question is LeaderCheck.LOG_START:
        lease.update_log_start(told.value, now=now)
    elif anchor is not None and 0 <= told.value <= anchor.base_offset:
        if question is LeaderCheck.EPOCH_END:
            lease.require_check(LeaderCheck.LOG_END)
            return
        text = (
            f"acknowledged records are gone: the log of the leader of epoch {lease.leader_epoch} ends at {told.value}, "
            f"offset {anchor.base_offset} had been acknowledged"
        )
        lease.halt(-1, text)


def read_replica(response: object) -> MetadataAnswer | None:
    """Decode a replica's Metadata response; None if it is malformed."""
    try:
        return read_metadata(cast("MetadataResponse", response))
    except (AttributeError, TypeError, ValueError):
        return None
