"""Produce: check a batch, ask the log what to do with it, write it, wait for its replicas, and say where it lies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, assert_never

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ..cluster.acls import Operation, Resource
from ..cluster.node import Node, Partition
from ..cluster.responses import Answer, Call, HangUp, Outcome, Silence, Wait
from ..log import internal_topics
from ..log.batches import Head, check
from ..log.error_codes import ErrorCode, Refusal
from ..log.partition_log import Appended, Known
from ..log.topics import Topic
from ..transactions.states import Key
from .transaction_verification import Verified, kind_of, may_write, verify

API_KEY: Final = 0
BY_ID: Final = 13
"""First version that names topics by their id."""

ZSTD: Final = 7
HINTS: Final = 10
ALL: Final = -1
"""`acks` of a request that is answered when all in-sync replicas have it."""

NO_TRANSACTIONAL_ID: Final = Refusal(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no right to the transactional id, or none is named"
)

_TopicAnswer: TypeAlias = ProduceResponse.TopicProduceResponse
_PartitionAnswer: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
_Part: TypeAlias = ProduceRequest.TopicProduceData.PartitionProduceData


class Expected(NamedTuple):
    """A batch in the log, new or not, whose replicas the answer waits for."""

    answer: _PartitionAnswer
    topic: Topic
    end_offset: int
    """What the high watermark must reach."""


@dataclass(frozen=True, slots=True)
class Written:
    """A request whose batches are in the log and whose answer waits."""

    answers: list[_TopicAnswer]
    waiting: list[Expected]
    mute_s: float


def produce(node: Node, request: ProduceRequest, call: Call) -> Outcome:
    """Serve a Produce request; with `acks` 0 there is no answer, and an error closes the connection."""
    named = Counter(
        (entry.name, entry.topic_id, part.index) for entry in request.topic_data for part in entry.partition_data
    )
    verified = verify(node, request, _writable(node, request, call), call)
    if isinstance(verified, Wait):
        return verified
    waiting: list[Expected] = []
    answers: list[_TopicAnswer] = []
    forbidden = not may_write(node, request, call)
    for entry in request.topic_data:
        parts: list[_PartitionAnswer] = []
        for part in entry.partition_data:
            repeated = named[entry.name, entry.topic_id, part.index] > 1
            if forbidden:
                found = _refused(part.index, NO_TRANSACTIONAL_ID)
            else:
                found = _partition(node, request, entry, part, verified, repeated=repeated, call=call)
            if isinstance(found, Expected):
                waiting.append(found)
                found = found.answer
            parts.append(found)
        answers.append(_TopicAnswer(name=entry.name, topic_id=entry.topic_id, partition_responses=parts))
    size = sum(len(_data(part)) for entry in request.topic_data for part in entry.partition_data)
    mute_s = node.quotas.throttle_s(call.client_id, size, call.moment.now)
    if request.acks == 0:
        failed = [part.error_code for answer in answers for part in answer.partition_responses if part.error_code]
        return HangUp(f"acks 0, error {failed[0]}") if failed else Silence()
    return finish(node, request, call, Written(answers, waiting, mute_s))


def _writable(node: Node, request: ProduceRequest, call: Call) -> dict[Key, bytes]:
    """What a request has for partitions of which the coordinator of its transaction may be asked, by topic and index."""
    if request.transactional_id is None or not may_write(node, request, call):
        return {}
    found: dict[Key, bytes] = {}
    for entry in request.topic_data:
        topic = node.topic_by_id(entry.topic_id) if call.version >= BY_ID else node.topic(entry.name)
        if topic is not None and node.permissions.allow(call.client_id, Operation.WRITE, Resource.TOPIC, topic.name):
            found.update({(topic.name, part.index): _data(part) for part in entry.partition_data})
    return found


def finish(node: Node, request: ProduceRequest, call: Call, written: Written) -> Outcome:
    """Answer when every batch is where it must be, or cannot get there any more, or the time is up."""
    deadline = call.arrived + max(request.timeout_ms, 0) / 1000
    left = [expected for expected in written.waiting if not _settled(node, expected, call.version)]
    if left and call.moment.now < deadline:
        return Wait(deadline, Written(written.answers, left, written.mute_s))
    for expected in left:
        expected.answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        expected.answer.error_message = "the in-sync replicas are too slow"
    hints = _hints(node, written.answers) if call.version >= HINTS else []
    throttle_ms = round(written.mute_s * 1000)
    response = ProduceResponse(responses=written.answers, node_endpoints=hints, throttle_time_ms=throttle_ms)
    return Answer(response, written.mute_s)


def _settled(node: Node, expected: Expected, version: int) -> bool:
    """Whether a batch needs no more waiting; its answer then says how it went, with its offset in every case."""
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
    if len(found.placement.in_sync) < found.in_sync_wanted:
        answer.error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        answer.error_message = "replicas were lost after the append"
    return True


def _hints(node: Node, answers: list[_TopicAnswer]) -> list[ProduceResponse.NodeEndpoint]:
    parts = [part for answer in answers for part in answer.partition_responses]
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    leaders = {part.current_leader.leader_id for part in parts if part.error_code == moved and part.current_leader}
    return [
        ProduceResponse.NodeEndpoint(node_id=peer.node_id, host=peer.host, port=peer.port)
        for peer in node.peers
        if peer.node_id in leaders
    ]


def _partition(
    node: Node,
    request: ProduceRequest,
    entry: ProduceRequest.TopicProduceData,
    part: _Part,
    verified: Verified,
    *,
    repeated: bool,
    call: Call,
) -> _PartitionAnswer | Expected:
    by_id = call.version >= BY_ID
    topic = node.topic_by_id(entry.topic_id) if by_id else node.topic(entry.name)
    name = entry.name if topic is None else topic.name
    # Without a name there is nothing that a right could be missing for.
    if name and not node.permissions.allow(call.client_id, Operation.WRITE, Resource.TOPIC, name):
        return _refused(part.index, Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to write"))
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _refused(part.index, Refusal(unknown, "no such topic"))
    if topic.name in internal_topics.NAMES:
        return _refused(part.index, Refusal(ErrorCode.INVALID_TOPIC, "the broker's own topic"))
    if request.acks not in {ALL, 0, 1}:
        return _refused(part.index, Refusal(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}"))
    fault = node.faults.for_partition(API_KEY, topic.name, part.index)
    if fault is not None and not fault.applied:
        return _refused(part.index, Refusal(fault.error, "on command"))
    partition = node.partition(topic, part.index)
    if isinstance(partition, ErrorCode):
        return _elsewhere(node, topic, part.index, partition, call.version)
    if repeated:
        return _refused(part.index, Refusal(ErrorCode.INVALID_RECORD, "the partition is twice in the request"))
    refusal = verified.get((topic.name, part.index))
    if refusal is not None:
        return _refused(part.index, refusal)
    found = _append(node, partition, part, acks=request.acks, call=call)
    if fault is None:
        return found
    answer = found.answer if isinstance(found, Expected) else found
    answer.error_code = fault.error
    return answer


def _data(part: _Part) -> bytes:
    return bytes(part.records or b"")


def _append(node: Node, partition: Partition, part: _Part, *, acks: int, call: Call) -> _PartitionAnswer | Expected:
    """Check and append one batch; in this order, so that a batch that is in the log can be refused all the same."""
    index = part.index
    if acks == ALL and len(partition.placement.in_sync) < partition.in_sync_wanted:
        few = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas are in sync", tells_log_start=True)
        return _refused(index, few, partition.log.start_offset)
    data = _data(part)
    wall_ms = call.moment.wall_ms
    head = check(data, partition.rules, verify=node.limits.verify, wall_ms=wall_ms, zstd=call.version >= ZSTD)
    log = partition.log
    if not isinstance(head, Head):
        return _refused(index, head, log.start_offset)
    kind = partition.rules.timestamp_type
    belongs = kind_of(head, call.version)
    placed = log.place(head, data, kind, wall_ms=wall_ms, epoch=partition.placement.epoch, belongs=belongs)
    match placed:
        case Refusal():
            return _refused(index, placed, log.start_offset)
        case Known():
            pass
        case Appended(data=stored):
            if not node.has_room(len(stored)):
                return _refused(index, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the node holds as much as it may"))
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
    return Expected(answer, partition.topic, placed.last_offset + 1) if acks == ALL else answer


def _elsewhere(node: Node, topic: Topic, index: int, error: ErrorCode, version: int) -> _PartitionAnswer:
    answer = _refused(index, Refusal(error, "this node does not have the partition"))
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= HINTS:
        _hint(node, topic, answer)
    return answer


def _hint(node: Node, topic: Topic, answer: _PartitionAnswer) -> None:
    """Say who leads, as far as this node knows."""
    placement = node.placements.placement(topic, answer.index)
    answer.current_leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=placement.leader, leader_epoch=placement.epoch)


def _refused(index: int, refusal: Refusal, log_start: int = -1) -> _PartitionAnswer:
    return _PartitionAnswer(
        index=index,
        error_code=refusal.error,
        base_offset=-1,
        log_start_offset=log_start if refusal.tells_log_start else -1,
        record_errors=[
            _PartitionAnswer.BatchIndexAndErrorMessage(batch_index=bad.number, batch_index_error_message=bad.why)
            for bad in refusal.records
        ],
        error_message=refusal.why,
    )
