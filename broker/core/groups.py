"""Offsets that consumers with assigned partitions commit; there are no group members here, and nothing survives a restart."""

from __future__ import annotations

from typing import Final, TypeAlias

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse

from .cluster import group_coordinator
from .errors import ErrorCode
from .node import Node
from .outcomes import Answer, Outcome

MANY_GROUPS: Final = 8
"""First OffsetFetch version that asks for several groups."""

NO_OFFSET: Final = (-1, "")
_Committed: TypeAlias = OffsetCommitResponse.OffsetCommitResponseTopic
_One: TypeAlias = OffsetFetchResponse.OffsetFetchResponseTopic
_Group: TypeAlias = OffsetFetchResponse.OffsetFetchResponseGroup


def offset_commit(node: Node, request: OffsetCommitRequest) -> Outcome:
    """Serve OffsetCommit from outside of any group."""
    error = _not_here(node, request.group_id)
    if error is ErrorCode.NONE and request.generation_id_or_member_epoch >= 0:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    answers = [
        _Committed(
            name=entry.name,
            partitions=[
                _Committed.OffsetCommitResponsePartition(
                    partition_index=part.partition_index,
                    error_code=error or _commit(node, request.group_id, entry.name, part),
                )
                for part in entry.partitions
            ],
        )
        for entry in request.topics
    ]
    return Answer(OffsetCommitResponse(topics=answers))


def _not_here(node: Node, group: str) -> ErrorCode:
    here = group_coordinator(node, group).node_id == node.node_id
    return ErrorCode.NONE if here else ErrorCode.NOT_COORDINATOR


def _commit(
    node: Node, group: str, name: str, part: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
) -> ErrorCode:
    topic = node.topic(name)
    if topic is None or not 0 <= part.partition_index < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    key = (group, name, part.partition_index)
    if key not in node.offsets and len(node.offsets) >= node.limits.offsets_max:
        return ErrorCode.KAFKA_STORAGE_ERROR
    node.offsets[key] = (part.committed_offset, part.committed_metadata)
    return ErrorCode.NONE


def offset_fetch(node: Node, request: OffsetFetchRequest, version: int) -> Outcome:
    """Serve OffsetFetch: -1 where nothing was committed."""
    if version >= MANY_GROUPS:
        return Answer(OffsetFetchResponse(groups=[_group(node, asked) for asked in request.groups]))
    error = _not_here(node, request.group_id)
    wanted = None if request.topics is None else {entry.name: entry.partition_indexes for entry in request.topics}
    found = {} if error else _committed(node, request.group_id, wanted)
    topics = [
        _One(
            name=name,
            partitions=[
                _One.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=offset, metadata=metadata, error_code=ErrorCode.NONE
                )
                for index, offset, metadata in parts
            ],
        )
        for name, parts in found.items()
    ]
    return Answer(OffsetFetchResponse(topics=topics, error_code=error))


def _group(node: Node, asked: OffsetFetchRequest.OffsetFetchRequestGroup) -> _Group:
    error = _not_here(node, asked.group_id)
    wanted = None if asked.topics is None else {entry.name: entry.partition_indexes for entry in asked.topics}
    found = {} if error else _committed(node, asked.group_id, wanted)
    topics = [
        _Group.OffsetFetchResponseTopics(
            name=name,
            partitions=[
                _Group.OffsetFetchResponseTopics.OffsetFetchResponsePartitions(
                    partition_index=index, committed_offset=offset, metadata=metadata, error_code=ErrorCode.NONE
                )
                for index, offset, metadata in parts
            ],
        )
        for name, parts in found.items()
    ]
    return _Group(group_id=asked.group_id, topics=topics, error_code=error)


def _committed(
    node: Node, group: str, wanted: dict[str, list[int]] | None
) -> dict[str, list[tuple[int, int, str | None]]]:
    """Partition, offset and metadata by topic; `wanted` None means all that the group ever committed."""
    if wanted is None:
        wanted = {}
        for owner, name, index in node.offsets:
            if owner == group:
                wanted.setdefault(name, []).append(index)
    return {
        name: [(index, *node.offsets.get((group, name, index), NO_OFFSET)) for index in indexes]
        for name, indexes in wanted.items()
    }
