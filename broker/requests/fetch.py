"""Read requests: Fetch, ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Final, TypeAlias

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode, BrokerPartition
from ..cluster.responses import DelayedResponse, ImmediateResponse, RequestContext, RequestOutcome
from ..log.batches import read_header
from ..log.decompression import CodecError
from ..log.error_codes import ErrorCode
from ..log.partition_log import PartitionLog
from ..log.records import RecordDecodeError
from ..log.topics import BrokerTopic

FETCH_KEY: Final = 1
LIST_OFFSETS_KEY: Final = 2
EPOCH_KEY: Final = 23
BY_ID: Final = 13
"""First version of Fetch that names topics by their id."""

LATEST: Final = -1
READ_COMMITTED: Final = 1
"""Isolation level of a client that reads neither open nor aborted transactions."""

EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
FETCH_BYTES_MAX: Final = 57_671_680
"""Largest Fetch response, whatever the client requests (Kafka's `fetch.max.bytes`)."""

_TopicAnswer: TypeAlias = FetchResponse.FetchableTopicResponse
_PartitionAnswer: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData
_Aborted: TypeAlias = FetchResponse.FetchableTopicResponse.PartitionData.AbortedTransaction
_Offset: TypeAlias = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
_EpochEnd: TypeAlias = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset


def fetch(node: BrokerNode, request: FetchRequest, call: RequestContext) -> RequestOutcome:
    """Serve Fetch; delay it until `min_bytes` are available or `max_wait_ms` have passed since it arrived.

    The broker opens no fetch sessions: every request names all its partitions.
    """
    if request.session_id != 0:
        return ImmediateResponse(
            FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, session_id=0, responses=[])
        )
    deadline = call.arrived + max(request.max_wait_ms, 0) / 1000
    if call.moment.now < deadline and not _enough(node, request, call):
        return DelayedResponse(deadline)
    room = min(max(request.max_bytes, 0), FETCH_BYTES_MAX)
    answers: list[_TopicAnswer] = []
    first = True
    for entry in request.topics:
        parts: list[_PartitionAnswer] = []
        for part in entry.partitions:
            found = _find(node, _topic(node, entry, call.version), part.partition, part.current_leader_epoch, call)
            isolated = request.isolation_level == READ_COMMITTED
            answer, size = _read(node, found, part, room=room, first=first, isolated=isolated)
            room -= size
            first = first and size == 0
            parts.append(answer)
        answers.append(_TopicAnswer(topic=entry.topic, topic_id=entry.topic_id, partitions=parts))
    return ImmediateResponse(FetchResponse(error_code=ErrorCode.NONE, session_id=0, responses=answers))


def _topic(node: BrokerNode, entry: FetchRequest.FetchTopic, version: int) -> BrokerTopic | None:
    return node.topic_by_id(entry.topic_id) if version >= BY_ID else node.topic(entry.topic)


def _enough(node: BrokerNode, request: FetchRequest, call: RequestContext) -> bool:
    """Return whether to respond at once: enough bytes, or any error."""
    wanted: int = min(request.min_bytes, request.max_bytes)
    size = 0
    for entry in request.topics:
        topic = _topic(node, entry, call.version)
        for part in entry.partitions:
            found = _find(node, topic, part.partition, part.current_leader_epoch, call)
            if isinstance(found, ErrorCode) or _out_of_range(found.log, part.fetch_offset):
                return True
            below = _end(found.log, isolated=request.isolation_level == READ_COMMITTED)
            size += found.log.size_from(part.fetch_offset, wanted - size, below=below)
            if size >= wanted:
                return True
    return size >= wanted


def _end(log: PartitionLog, *, isolated: bool) -> int:
    """Return the offset at which the log ends for a reader."""
    return log.last_stable_offset if isolated else log.high_watermark


def _out_of_range(log: PartitionLog, offset: int) -> bool:
    return not log.start_offset <= offset <= max(log.high_watermark, log.start_offset)


def _find(
    node: BrokerNode, topic: BrokerTopic | None, index: int, epoch: int, call: RequestContext
) -> BrokerPartition | ErrorCode:
    """Return the partition to read, if this node leads it and the client knows the same leader epoch (-1: none)."""
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if call.version >= BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not node.authorizer.is_allowed(call.client_id, AclOperation.READ, AclResourceType.TOPIC, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return _leader_partition(node, topic, index, epoch)


def _leader_partition(node: BrokerNode, topic: BrokerTopic, index: int, epoch: int) -> BrokerPartition | ErrorCode:
    replica = node.replica(topic, index)
    if isinstance(replica, ErrorCode):
        return replica
    if epoch > replica.placement.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    if 0 <= epoch < replica.placement.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    return node.partition(topic, index)


def _describable_partition(
    node: BrokerNode, name: str, index: int, epoch: int, call: RequestContext
) -> BrokerPartition | ErrorCode:
    """Return the partition whose offsets a client requests, as `_find` does."""
    if not node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE, AclResourceType.TOPIC, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = node.topic(name)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else _leader_partition(node, topic, index, epoch)


def _read(
    node: BrokerNode,
    found: BrokerPartition | ErrorCode,
    part: FetchRequest.FetchTopic.FetchPartition,
    *,
    room: int,
    first: bool,
    isolated: bool,
) -> tuple[_PartitionAnswer, int]:
    """Return the response for one partition, and its bytes of records."""
    if not isinstance(found, ErrorCode):
        fault = node.faults.for_partition(FETCH_KEY, found.topic.name, part.partition)
        found = fault.error if fault is not None else found
    if isinstance(found, ErrorCode):
        failed = _PartitionAnswer(
            partition_index=part.partition, error_code=found, high_watermark=-1, aborted_transactions=None, records=b""
        )
        return failed, 0
    log = found.log
    records: list[bytes] = []
    error = ErrorCode.NONE
    if _out_of_range(log, part.fetch_offset):
        error = ErrorCode.OFFSET_OUT_OF_RANGE
    elif room > 0 or first:
        limit = min(room, max(part.partition_max_bytes, 0))
        records = log.read(part.fetch_offset, limit, below=_end(log, isolated=isolated))
        # Only the first batch of a response may exceed the requested size.
        if not first and records and len(records[0]) > room:
            records = []
    data = b"".join(records)
    answer = _PartitionAnswer(
        partition_index=part.partition,
        error_code=error,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.start_offset,
        aborted_transactions=_aborted(log, part.fetch_offset, records) if isolated else None,
        records=data,
    )
    return answer, len(data)


def _aborted(log: PartitionLog, offset: int, records: list[bytes]) -> list[_Aborted]:
    """Return the aborted transactions that a reader of these batches must filter out."""
    end = offset
    if records:
        last = read_header(records[-1])
        end = last.base_offset + last.last_offset_delta + 1
    found = log.aborted_transactions(offset, end)
    return [_Aborted(producer_id=one.producer_id, first_offset=one.first_offset) for one in found]


def list_offsets(node: BrokerNode, request: ListOffsetsRequest, call: RequestContext) -> RequestOutcome:
    """Serve ListOffsets: earliest, latest, by timestamp, and the largest timestamp."""
    isolated = request.isolation_level == READ_COMMITTED
    return ImmediateResponse(
        ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=entry.name,
                    partitions=[_offset(node, entry.name, part, call, isolated=isolated) for part in entry.partitions],
                )
                for entry in request.topics
            ]
        )
    )


def _offset(
    node: BrokerNode,
    name: str,
    part: ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition,
    call: RequestContext,
    *,
    isolated: bool,
) -> _Offset:
    index = part.partition_index
    found = _describable_partition(node, name, index, part.current_leader_epoch, call)
    fault = node.faults.for_partition(LIST_OFFSETS_KEY, name, index)
    if fault is not None:
        found = fault.error
    if isinstance(found, ErrorCode):
        return _Offset(partition_index=index, error_code=found, timestamp=-1, offset=-1, leader_epoch=-1)
    try:
        place = _find_offset(found.log, part.timestamp, _end(found.log, isolated=isolated))
    except (CodecError, RecordDecodeError):
        place = ErrorCode.CORRUPT_MESSAGE
    if isinstance(place, ErrorCode):
        return _Offset(partition_index=index, error_code=place, timestamp=-1, offset=-1, leader_epoch=-1)
    offset, time = place or (-1, -1)
    epoch = -1
    if place:
        epoch = found.placement.epoch if part.timestamp == LATEST else found.log.epoch_at(offset)
    return _Offset(partition_index=index, error_code=ErrorCode.NONE, timestamp=time, offset=offset, leader_epoch=epoch)


def _find_offset(log: PartitionLog, timestamp: int, end: int) -> tuple[int, int] | ErrorCode | None:
    """Return offset and timestamp for a ListOffsets timestamp; None when no record matches."""
    if timestamp == LATEST:
        return end, -1
    if timestamp == EARLIEST:
        return log.start_offset, -1
    if timestamp == MAX_TIMESTAMP:
        return log.find_max_timestamp(below=end)
    return log.find_by_timestamp(timestamp, below=end) if timestamp >= 0 else ErrorCode.UNSUPPORTED_VERSION


def offset_for_leader_epoch(
    node: BrokerNode, request: OffsetForLeaderEpochRequest, call: RequestContext
) -> RequestOutcome:
    """Serve OffsetForLeaderEpoch: the end offset of an epoch in this leader's log."""
    return ImmediateResponse(
        OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=entry.topic,
                    partitions=[_epoch_end(node, entry.topic, part, call) for part in entry.partitions],
                )
                for entry in request.topics
            ]
        )
    )


def _epoch_end(
    node: BrokerNode,
    name: str,
    part: OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition,
    call: RequestContext,
) -> _EpochEnd:
    found = _describable_partition(node, name, part.partition, part.current_leader_epoch, call)
    fault = node.faults.for_partition(EPOCH_KEY, name, part.partition)
    if fault is not None:
        found = fault.error
    if isinstance(found, ErrorCode):
        return _EpochEnd(error_code=found, partition=part.partition, leader_epoch=-1, end_offset=-1)
    epoch, end = found.log.end_of_epoch(part.leader_epoch)
    return _EpochEnd(error_code=ErrorCode.NONE, partition=part.partition, leader_epoch=epoch, end_offset=end)
