"""What a leader is asked before a partition is sent: where its log starts, where an older leader's epoch ended, and whether
the topic is still the same. Until it has answered nothing of the partition is sent.

* START after a grant and after a long pause: an acknowledged batch that is no longer in the log keeps no state alive (HO-6).
* END after a newer leader epoch: a log that ended before what was acknowledged may have lost it (GAP-5).
* LENGTH where END says so. A leader may take our batches under an epoch that we hear of later: then they lie behind that end, and
  only a log that is shorter than what was acknowledged has lost it.
* TOPIC where Produce goes by name, on every new connection and after an unknown topic: a topic made again under the same
  name would take our batches, and nothing in its answers would tell (IDN-8).
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
"""Older ones lack what we want to know: then nothing is asked."""
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
    """A question on its way, for several partitions of one node."""

    check: LeaderCheck
    partitions: list[IdempotentPartition]


class LeaderCheckResult(NamedTuple):
    """The answer for one partition, or (part -1) for one topic. `value`: an offset, or a topic id."""

    topic: str
    part: int
    code: int
    value: int | bytes


def due_checks(leases: Iterable[IdempotentPartition], node: int, *, now: float) -> list[LeaderCheckRequest]:
    """The questions to ask a node now."""
    asked = [LeaderCheckRequest(question, []) for question in LeaderCheck]
    for lease in leases:
        if lease.node != node or lease.checks_in_flight or now < lease.retry_at:
            continue
        for one in asked:
            if one.check in lease.pending_checks:
                one.partitions.append(lease)
    return [one for one in asked if one.partitions]


def request_for(asked: LeaderCheckRequest) -> KafkaRequest:
    """The request, in no version yet."""
    if asked.check is LeaderCheck.TOPIC_ID:
        return metadata_request(sorted({lease.topic for lease in asked.partitions}))
    if asked.check is LeaderCheck.LOG_START:
        return cast("KafkaRequest", _log_starts(asked.partitions))
    return cast("KafkaRequest", _epoch_ends(asked.partitions, asked.check))


def metadata_request(names: Iterable[str]) -> KafkaRequest:
    """A question for topics that makes none."""
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
                    # The epoch in force ends where the log does.
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
    """What an answer says."""
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
    """Apply the answers; a partition that is left out is asked for again."""
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
    """The broker takes no such question: what answers say has to do."""
    for lease in asked.partitions:
        lease.complete_check(asked.check)


def lost(asked: LeaderCheckRequest, *, now: float, chance: float) -> None:
    """The connection ended before the answer."""
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
        # Produce will be refused for the same reason, and that is reported.
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
    """What a replica says of topics; None: nothing that can be understood."""
    try:
        return read_metadata(cast("MetadataResponse", response))
    except (AttributeError, TypeError, ValueError):
        return None
