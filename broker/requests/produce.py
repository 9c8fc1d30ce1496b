"""Produce: validate batches, append them, wait for their replicas, and respond with their offsets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode, BrokerPartition
from ..cluster.responses import (
    CloseConnection,
    DelayedResponse,
    ImmediateResponse,
    NoResponse,
    RequestContext,
    RequestOutcome,
)
from ..log import internal_topics
from ..log.batches import BatchHeader, validate_batch
from ..log.error_codes import AppendRejection, ErrorCode
from ..log.partition_log import DuplicateAppend, LogAppendInfo
from ..log.topics import BrokerTopic
from ..transactions.states import Key
from .transaction_verification import VerificationErrors, is_write_authorized, transactional_flags_of, verify

API_KEY: Final = 0
BY_ID: Final = 13
"""First version that names topics by their id."""

ZSTD: Final = 7
HINTS: Final = 10
ALL: Final = -1
"""`acks` of a request whose response waits for all in-sync replicas."""

NO_TRANSACTIONAL_ID: Final = AppendRejection(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no right to the transactional id, or none is named"
)

_TopicAnswer: TypeAlias = ProduceResponse.TopicProduceResponse
_PartitionAnswer: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_Part: TypeAlias = ProduceRequest.TopicProduceData.PartitionProduceData


class ProducePartitionStatus(NamedTuple):
    """A batch in the log, new or duplicate, whose replication the response waits for."""

    answer: _PartitionAnswer
    topic: BrokerTopic
    end_offset: int
    """Offset that the high watermark must reach."""


@dataclass(frozen=True, slots=True)
class DelayedProduce:
    """A request whose batches are in the log and whose response waits."""

    answers: list[_TopicAnswer]
    waiting: list[ProducePartitionStatus]
    mute_s: float


def produce(node: BrokerNode, request: ProduceRequest, call: RequestContext) -> RequestOutcome:
    """Serve Produce; with `acks` 0 there is no response, and an error closes the connection."""
    named = Counter(
        (entry.name, entry.topic_id, part.index) for entry in request.topic_data for part in entry.partition_data
    )
    verified = verify(node, request, _writable(node, request, call), call)
    if isinstance(verified, DelayedResponse):
        return verified
    waiting: list[ProducePartitionStatus] = []
    answers: list[_TopicAnswer] = []
    forbidden = not is_write_authorized(node, request, call)
    for entry in request.topic_data:
        parts: list[_PartitionAnswer] = []
        for part in entry.partition_data:
            repeated = named[entry.name, entry.topic_id, part.index] > 1
            if forbidden:
                found = _rejected(part.index, NO_TRANSACTIONAL_ID)
            else:
                found = _partition(node, request, entry, part, verified, repeated=repeated, call=call)
            if isinstance(found, ProducePartitionStatus):
                waiting.append(found)
                found = found.answer
            parts.append(found)
        answers.append(_TopicAnswer(name=entry.name, topic_id=entry.topic_id, partition_responses=parts))
    size = sum(len(_data(part)) for entry in request.topic_data for part in entry.partition_data)
    mute_s = node.quotas.throttle_s(call.client_id, size, call.moment.now)
    if request.acks == 0:
        failed = [part.error_code for answer in answers for part in answer.partition_responses if part.error_code]
        return CloseConnection(f"acks 0, error {failed[0]}") if failed else NoResponse()
    return try_complete_produce(node, request, call, DelayedProduce(answers, waiting, mute_s))


def _writable(node: BrokerNode, request: ProduceRequest, call: RequestContext) -> dict[Key, bytes]:
    """Return the data, by topic and index, of the partitions to verify with the transaction coordinator."""
    if request.transactional_id is None or not is_write_authorized(node, request, call):
        return {}
    found: dict[Key, bytes] = {}
    for entry in request.topic_data:
        topic = node.topic_by_id(entry.topic_id) if call.version >= BY_ID else node.topic(entry.name)
        if topic is not None and node.authorizer.is_allowed(
            call.client_id, AclOperation.WRITE, AclResourceType.TOPIC, topic.name
        ):
            found.update({(topic.name, part.index): _data(part) for part in entry.partition_data})
    return found


def try_complete_produce(
    node: BrokerNode, request: ProduceRequest, call: RequestContext, written: DelayedProduce
) -> RequestOutcome:
    """Respond when every batch is replicated or can no longer be, or on timeout."""
    deadline = call.arrived + max(request.timeout_ms, 0) / 1000
    left = [expected for expected in written.waiting if not _is_complete(node, expected, call.version)]
    if left and call.moment.now < deadline:
        return DelayedResponse(deadline, DelayedProduce(written.answers, left, written.mute_s))
    for expected in left:
        expected.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        expected.answer.error_message = "the in-sync replicas are too slow"
    hints = _hints(node, written.answers) if call.version >= HINTS else []
    throttle_ms = round(written.mute_s * 1000)
    response = ProduceResponse(responses=written.answers, node_endpoints=hints, throttle_time_ms=throttle_ms)
    return ImmediateResponse(response, written.mute_s)


def _is_complete(node: BrokerNode, expected: ProducePartitionStatus, version: int) -> bool:
    """Return whether a batch needs no more waiting; its response then has the result, always with its offset."""
    answer = expected.answer
    known = node.topic_by_id(expected.topic.id)
    found = ErrorCode.NOT_LEADER_OR_FOLLOWER if known is None else node.partition(known, answer.index)
    if isinstance(found, ErrorCode):
        answer.error_code, answer.error_message = found, "another node leads by now"
        if known is not None and version >= HINTS:
            _hint(node, known, answer)
        return True
    if found.log.high_watermark < expected.end_offset:
        return False
    if len(found.placement.in_sync) < found.min_in_sync:
        answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        answer.error_message = "replicas were lost after the append"
    return True


def _hints(node: BrokerNode, answers: list[_TopicAnswer]) -> list[ProduceResponse.NodeEndpoint]:
    parts = [part for answer in answers for part in answer.partition_responses]
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leaders = {part.current_leader.leader_id for part in parts if part.error_code == moved and part.current_leader}
    return [
        ProduceResponse.NodeEndpoint(node_id=peer.node_id, host=peer.host, port=peer.port)
        for peer in node.peers
        if peer.node_id in leaders
    ]


def _partition(
    node: BrokerNode,
    request: ProduceRequest,
    entry: ProduceRequest.TopicProduceData,
    part: _Part,
    verified: VerificationErrors,
    *,
    repeated: bool,
    call: RequestContext,
) -> _PartitionAnswer | ProducePartitionStatus:
    by_id = call.version >= BY_ID
    topic = node.topic_by_id(entry.topic_id) if by_id else node.topic(entry.name)
    name = entry.name if topic is None else topic.name
    # Without a name there is no topic to authorize.
    if name and not node.authorizer.is_allowed(call.client_id, AclOperation.WRITE, AclResourceType.TOPIC, name):
        return _rejected(part.index, AppendRejection(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to write"))
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _rejected(part.index, AppendRejection(unknown, "no such topic"))
    if topic.name in internal_topics.NAMES:
        return _rejected(part.index, AppendRejection(ErrorCode.INVALID_TOPIC, "the broker's own topic"))
    if request.acks not in {ALL, 0, 1}:
        return _rejected(part.index, AppendRejection(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}"))
    fault = node.faults.for_partition(API_KEY, topic.name, part.index)
    if fault is not None and not fault.applied:
        return _rejected(part.index, AppendRejection(fault.error, "on command"))
    partition = node.partition(topic, part.index)
    if isinstance(partition, ErrorCode):
        return _not_leader(node, topic, part.index, partition, call.version)
    if repeated:
        return _rejected(part.index, AppendRejection(ErrorCode.INVALID_RECORD, "the partition is twice in the request"))
    refusal = verified.get((topic.name, part.index))
    if refusal is not None:
        return _rejected(part.index, refusal)
    found = _append(node, partition, part, acks=request.acks, call=call)
    if fault is None:
        return found
    answer = found.answer if isinstance(found, ProducePartitionStatus) else found
    answer.error_code = fault.error
    return answer


def _data(part: _Part) -> bytes:
    return bytes(part.records or b"")


def _append(
    node: BrokerNode, partition: BrokerPartition, part: _Part, *, acks: int, call: RequestContext
) -> _PartitionAnswer | ProducePartitionStatus:
    """Validate and append one batch. The checks come first, so that they can reject even a batch already in the log."""
    index = part.index
    if acks == ALL and len(partition.placement.in_sync) < partition.min_in_sync:
        few = AppendRejection(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas are in sync", has_log_start_offset=True)
        return _rejected(index, few, partition.log.start_offset)
    data = _data(part)
    wall_ms = call.moment.wall_ms
    head = validate_batch(data, partition.rules, verify=node.limits.verify, wall_ms=wall_ms, zstd=call.version >= ZSTD)
    log = partition.log
    if not isinstance(head, BatchHeader):
        return _rejected(index, head, log.start_offset)
    kind = partition.rules.timestamp_type
    belongs = transactional_flags_of(head, call.version)
    placed = log.prepare_append(head, data, kind, wall_ms=wall_ms, epoch=partition.placement.epoch, belongs=belongs)
    match placed:
        case AppendRejection():
            return _rejected(index, placed, log.start_offset)
        case DuplicateAppend():
            pass
        case LogAppendInfo(data=stored):
            if not node.has_room(len(stored)):
                return _rejected(
                    index, AppendRejection(ErrorCode.KAFKA_STORAGE_ERROR, "the node holds as much as it may")
                )
            node.write(partition, index, stored)
        case _:
            assert_never(placed)
    answer = _PartitionAnswer(
        index=index,
        error_code=ErrorCode.NONE,
        base_offset=placed.base_offset,
        log_append_time_ms=placed.log_append_time,
        log_start_offset=log.start_offset,
    )
    return ProducePartitionStatus(answer, partition.topic, placed.last_offset + 1) if acks == ALL else answer


def _not_leader(node: BrokerNode, topic: BrokerTopic, index: int, error: ErrorCode, version: int) -> _PartitionAnswer:
    answer = _rejected(index, AppendRejection(error, "this node does not have the partition"))
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= HINTS:
        _hint(node, topic, answer)
    return answer


def _hint(node: BrokerNode, topic: BrokerTopic, answer: _PartitionAnswer) -> None:
    """Add the leader that this node knows to the response."""
    placement = node.metadata_cache.placement(topic, answer.index)
    answer.current_leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=placement.leader, leader_epoch=placement.epoch)


def _rejected(index: int, refusal: AppendRejection, log_start: int = -1) -> _PartitionAnswer:
    return _PartitionAnswer(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=log_start if refusal.has_log_start_offset else -1,
        record_errors=[
            _PartitionAnswer.BatchIndexAndErrorMessage(batch_index=bad.number, batch_index_error_message=bad.why)
            for bad in refusal.records
        ],
        error_message=refusal.why,
    )
