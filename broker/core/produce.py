"""Produce: check a batch, ask the log what to do with it, write it, and say where it lies."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias, assert_never

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from .batches import Head, check
from .errors import ErrorCode, Refusal
from .log import LEADER_EPOCH, Appended, Known
from .node import Node, Partition
from .outcomes import Answer, HangUp, Outcome, Silence
from .ports import Moment
from .topics import Topic

API_KEY: Final = 0
BY_ID: Final = 13
"""First version that names topics by their id."""

ZSTD: Final = 7
HINTS: Final = 10

_TopicAnswer: TypeAlias = ProduceResponse.TopicProduceResponse
_PartitionAnswer: TypeAlias = ProduceResponse.TopicProduceResponse.PartitionProduceResponse


def produce(node: Node, request: ProduceRequest, version: int, moment: Moment) -> Outcome:
    """Serve a Produce request; with `acks` 0 there is no answer, and an error closes the connection."""
    named = Counter(
        (entry.name, entry.topic_id, part.index) for entry in request.topic_data for part in entry.partition_data
    )
    answers = [
        _TopicAnswer(
            name=entry.name,
            topic_id=entry.topic_id,
            partition_responses=[
                _partition(
                    node,
                    request,
                    entry,
                    part,
                    repeated=named[entry.name, entry.topic_id, part.index] > 1,
                    version=version,
                    moment=moment,
                )
                for part in entry.partition_data
            ],
        )
        for entry in request.topic_data
    ]
    if request.acks == 0:
        failed = [part.error_code for answer in answers for part in answer.partition_responses if part.error_code]
        return HangUp(f"acks 0, error {failed[0]}") if failed else Silence()
    return Answer(ProduceResponse(responses=answers, node_endpoints=_hints(node, answers) if version >= HINTS else []))


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
    part: ProduceRequest.TopicProduceData.PartitionProduceData,
    *,
    repeated: bool,
    version: int,
    moment: Moment,
) -> _PartitionAnswer:
    topic = node.topic_by_id(entry.topic_id) if version >= BY_ID else node.topic(entry.name)
    if topic is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= BY_ID else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _refused(part.index, Refusal(unknown, "no such topic"))
    if request.acks not in {-1, 0, 1}:
        return _refused(part.index, Refusal(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks}"))
    fault = node.faults.for_partition(API_KEY, topic.name, part.index)
    if fault is not None and not fault.applied:
        return _refused(part.index, Refusal(fault.error, "on command"))
    partition = node.partition(topic, part.index)
    if isinstance(partition, ErrorCode):
        return _elsewhere(node, topic, part.index, partition, version)
    if repeated:
        return _refused(part.index, Refusal(ErrorCode.INVALID_RECORD, "the partition is twice in the request"))
    answer = _append(node, partition, part.index, bytes(part.records or b""), version=version, moment=moment)
    if fault is not None:
        answer.error_code = fault.error
    return answer


def _append(
    node: Node, partition: Partition, index: int, data: bytes, *, version: int, moment: Moment
) -> _PartitionAnswer:
    # With one replica the smallest number of in-sync replicas is always there.
    head = check(data, partition.rules, verify=node.limits.verify, wall_ms=moment.wall_ms, zstd=version >= ZSTD)
    if not isinstance(head, Head):
        return _refused(index, head, partition.log.start_offset)
    log = partition.log
    placed = log.place(head, data, partition.rules.timestamp_type, wall_ms=moment.wall_ms)
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
    return _PartitionAnswer(
        index=index,
        error_code=ErrorCode.NONE,
        base_offset=placed.base_offset,
        log_append_time_ms=placed.log_append_time,
        log_start_offset=log.start_offset,
    )


def _elsewhere(node: Node, topic: Topic, index: int, error: ErrorCode, version: int) -> _PartitionAnswer:
    answer = _refused(index, Refusal(error, "this node does not have the partition"))
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER and version >= HINTS:
        leader = node.leader(topic, index)
        answer.current_leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=LEADER_EPOCH)
    return answer


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
