"""Group offsets: OffsetCommit, TxnOffsetCommit and OffsetFetch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode
from ..cluster.responses import DelayedResponse, ImmediateResponse, RequestContext, RequestOutcome
from ..groups.membership import GroupState
from ..groups.offsets_table import CommittedOffset, GroupTopicPartition, encode_record
from ..log import internal_topics
from ..log.batch_writer import BatchProducer, internal_batch
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime
from ..transactions.states import TransactionOwner
from .coordinator import (
    WRITE_S,
    CoordinatorPartition,
    DelayedWrite,
    append,
    coordinator_partition_of,
    try_complete_write,
    write,
)
from .transaction_verification import RETRIABLE_COORDINATOR_ERRORS, PendingVerification, query_coordinator

OFFSET_COMMIT_KEY: Final = 8
OFFSET_FETCH_KEY: Final = 9
TXN_OFFSET_COMMIT_KEY: Final = 28
MANY_GROUPS: Final = 8
"""First OffsetFetch version that names several groups."""

STABLE: Final = 7
"""First OffsetFetch version that can require offsets that no open transaction will change."""

WITH_EPOCH: Final = 6
"""First OffsetCommit version with a leader epoch."""

ADDS_BY_ITSELF: Final = 5
"""First TxnOffsetCommit version that adds the group's offsets to the transaction (KIP-890)."""

ABORTABLE_BY_NAME: Final = 4
"""First TxnOffsetCommit version that knows TRANSACTION_ABORTABLE."""

WITH_MEMBER: Final = 3
"""First TxnOffsetCommit version that names the member of the group."""

INSTANCES: Final = 7
"""First OffsetCommit version with group instance ids."""

FORBIDDEN: Final = frozenset({ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""Errors of the whole request; they override the errors of single partitions."""

METADATA_BYTES_MAX: Final = 4_096
_Committed: TypeAlias = OffsetCommitResponse.OffsetCommitResponseTopic
_InTransaction: TypeAlias = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_One: TypeAlias = OffsetFetchResponse.OffsetFetchResponseTopic
_Group: TypeAlias = OffsetFetchResponse.OffsetFetchResponseGroup


class OffsetFetchResult(NamedTuple):
    """Response for one partition of an OffsetFetch request."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    error: ErrorCode


def _commits(
    node: BrokerNode, request: OffsetCommitRequest | TxnOffsetCommitRequest, call: RequestContext, *, epochs: bool
) -> tuple[dict[GroupTopicPartition, CommittedOffset], dict[tuple[str, int], ErrorCode]]:
    """Return the offsets that a request commits, and an error code for each of its partitions."""
    wanted: dict[GroupTopicPartition, CommittedOffset] = {}
    errors: dict[tuple[str, int], ErrorCode] = {}
    for entry in request.topics:
        for part in entry.partitions:
            key = (entry.name, part.partition_index)
            place = GroupTopicPartition(request.group_id, *key)
            errors[key] = _commit_error(node, place, part.committed_metadata, call)
            if errors[key] is ErrorCode.NONE:
                epoch = part.committed_leader_epoch if epochs else -1
                wanted[place] = CommittedOffset(
                    part.committed_offset, epoch, part.committed_metadata, call.moment.wall_ms
                )
    return wanted, errors


def _commit_error(
    node: BrokerNode, place: GroupTopicPartition, metadata: str | None, call: RequestContext
) -> ErrorCode:
    if not node.authorizer.is_allowed(call.client_id, AclOperation.READ, AclResourceType.TOPIC, place.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = node.topic(place.topic)
    if topic is None or not 0 <= place.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((metadata or "").encode()) > METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _has_room(node: BrokerNode, home: CoordinatorPartition, wanted: Iterable[GroupTopicPartition]) -> bool:
    new = [place for place in wanted if node.groups.get(home.index, place) is None]
    return not new or len(node.groups) + len(new) <= node.limits.offsets_max


def _group_coordinator_partition(
    node: BrokerNode, api: int, group: str, call: RequestContext, *, operation: AclOperation
) -> CoordinatorPartition | ErrorCode:
    fault = node.faults.for_partition(api, group, -1)
    if fault is not None:
        return fault.error
    if not node.authorizer.is_allowed(call.client_id, operation, AclResourceType.GROUP, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return coordinator_partition_of(node, internal_topics.OFFSETS, group, call.moment.now)


def _member_error(
    node: BrokerNode,
    home: CoordinatorPartition,
    group: str,
    member: str,
    instance: str | None,
    generation: int,
    *,
    in_transaction: bool,
) -> ErrorCode:
    """Return why a commit does not belong to the current generation of its group, or NONE."""
    known = node.groups.group(home.index, group)
    if known is None or not known.members:
        if generation < 0:
            return ErrorCode.NONE
        exists = node.groups.exists(home.index, group) or not node.limits.is_kafka_4
        return ErrorCode.UNKNOWN_MEMBER_ID if exists else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and not member and instance is None:
        return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
    error = known.validate_member(member, instance, generation)
    if error is ErrorCode.NONE and known.state is GroupState.COMPLETING_REBALANCE and not in_transaction:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return error


def offset_commit(node: BrokerNode, request: OffsetCommitRequest, call: RequestContext) -> RequestOutcome:
    """Serve OffsetCommit, from a group member or from a client outside the group."""
    wanted, errors = _commits(node, request, call, epochs=call.version >= WITH_EPOCH)

    def told(error: ErrorCode) -> OffsetCommitResponse:
        part = _Committed.OffsetCommitResponsePartition
        parts = _by_topic({key: error if error in FORBIDDEN else found or error for key, found in errors.items()})
        return OffsetCommitResponse(
            topics=[
                _Committed(name=name, partitions=[part(partition_index=index, error_code=code) for index, code in told])
                for name, told in parts.items()
            ]
        )

    home = _group_coordinator_partition(node, OFFSET_COMMIT_KEY, request.group_id, call, operation=AclOperation.READ)
    if isinstance(home, ErrorCode):
        return ImmediateResponse(told(home))
    instance = request.group_instance_id if call.version >= INSTANCES else None
    who = (request.member_id, instance, request.generation_id_or_member_epoch)
    error = _member_error(node, home, request.group_id, *who, in_transaction=False)
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error))
    if not wanted:
        return ImmediateResponse(told(ErrorCode.NONE))
    if not _has_room(node, home, wanted):
        return ImmediateResponse(told(ErrorCode.KAFKA_STORAGE_ERROR))
    pairs = [encode_record(place, committed) for place, committed in wanted.items()]
    end = write(node, home, pairs, call.moment.wall_ms)
    if end is None:
        return ImmediateResponse(told(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return try_complete_write(node, call, DelayedWrite(told(ErrorCode.NONE), home, end, told))


def _by_topic(errors: dict[tuple[str, int], ErrorCode]) -> dict[str, list[tuple[int, ErrorCode]]]:
    found: dict[str, list[tuple[int, ErrorCode]]] = {}
    for (name, index), error in errors.items():
        found.setdefault(name, []).append((index, error))
    return found


def txn_offset_commit(node: BrokerNode, request: TxnOffsetCommitRequest, call: RequestContext) -> RequestOutcome:
    """Serve TxnOffsetCommit: the offsets take effect when their producer's transaction commits."""
    wanted, errors = _commits(node, request, call, epochs=call.version >= 2)

    def told(error: ErrorCode) -> TxnOffsetCommitResponse:
        part = _InTransaction.TxnOffsetCommitResponsePartition
        parts = _by_topic({key: error if error in FORBIDDEN else found or error for key, found in errors.items()})
        return TxnOffsetCommitResponse(
            topics=[
                _InTransaction(
                    name=name, partitions=[part(partition_index=index, error_code=code) for index, code in told]
                )
                for name, told in parts.items()
            ]
        )

    if not node.authorizer.is_allowed(
        call.client_id, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return ImmediateResponse(told(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    home = _group_coordinator_partition(
        node, TXN_OFFSET_COMMIT_KEY, request.group_id, call, operation=AclOperation.READ
    )
    if isinstance(home, ErrorCode):
        return ImmediateResponse(told(home))
    if not wanted:
        return ImmediateResponse(told(ErrorCode.NONE))
    member = ("", None, -1)
    if call.version >= WITH_MEMBER:
        member = (request.member_id, request.group_instance_id, request.generation_id)
    stranger = _member_error(node, home, request.group_id, *member, in_transaction=True)
    if stranger is not ErrorCode.NONE:
        return ImmediateResponse(told(stranger))
    if not _has_room(node, home, wanted):
        return ImmediateResponse(told(ErrorCode.KAFKA_STORAGE_ERROR))
    error = _verify_in_transaction(node, home, request, call)
    if error is None and call.moment.now < call.arrived + WRITE_S:
        return DelayedResponse(call.arrived + WRITE_S, PendingVerification())
    if error is not ErrorCode.NONE:
        return ImmediateResponse(told(error or ErrorCode.COORDINATOR_NOT_AVAILABLE))
    pairs = [encode_record(place, committed) for place, committed in wanted.items()]
    who = BatchProducer(request.producer_id, request.producer_epoch)
    data = internal_batch(pairs, call.moment.wall_ms, who)
    end = append(node, home.partition, home.index, data, call.moment.wall_ms)
    if end is None:
        return ImmediateResponse(told(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    return try_complete_write(node, call, DelayedWrite(told(ErrorCode.NONE), home, end, told))


def _verify_in_transaction(
    node: BrokerNode, home: CoordinatorPartition, request: TxnOffsetCommitRequest, call: RequestContext
) -> ErrorCode | None:
    """Ask the transaction coordinator about the offsets partition; None while its state is not replicated."""
    who = TransactionOwner(request.producer_id, request.producer_epoch)
    known = home.partition.log.producers.get(who.producer_id)
    if known is not None and who.epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if home.partition.log.producers.has_open_transaction(*who):
        return ErrorCode.NONE
    key = (internal_topics.OFFSETS, home.index)
    error = query_coordinator(node, request.transactional_id, who, key, call, adds=call.version >= ADDS_BY_ITSELF)
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and call.version < ABORTABLE_BY_NAME:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and call.version >= ADDS_BY_ITSELF:
        return error
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if error in RETRIABLE_COORDINATOR_ERRORS else error


def offset_fetch(node: BrokerNode, request: OffsetFetchRequest, call: RequestContext) -> RequestOutcome:
    """Serve OffsetFetch; a partition without a committed offset gets -1."""
    stable = call.version >= STABLE and request.require_stable
    if call.version >= MANY_GROUPS:
        return ImmediateResponse(
            OffsetFetchResponse(groups=[_group(node, asked, call, stable=stable) for asked in request.groups])
        )
    wanted = None if request.topics is None else {entry.name: entry.partition_indexes for entry in request.topics}
    error, found = _fetch_offsets(node, request.group_id, wanted, call, stable=stable)
    part = _One.OffsetFetchResponsePartition
    topics = [
        _One(
            name=name,
            partitions=[
                part(
                    partition_index=told.partition,
                    committed_offset=told.offset,
                    committed_leader_epoch=told.leader_epoch,
                    metadata=told.metadata,
                    error_code=told.error,
                )
                for told in parts
            ],
        )
        for name, parts in found.items()
    ]
    return ImmediateResponse(OffsetFetchResponse(topics=topics, error_code=error))


def _group(
    node: BrokerNode, asked: OffsetFetchRequest.OffsetFetchRequestGroup, call: RequestContext, *, stable: bool
) -> _Group:
    wanted = None if asked.topics is None else {entry.name: entry.partition_indexes for entry in asked.topics}
    error, found = _fetch_offsets(node, asked.group_id, wanted, call, stable=stable)
    kind = _Group.OffsetFetchResponseTopics
    topics = [
        kind(
            name=name,
            partitions=[
                kind.OffsetFetchResponsePartitions(
                    partition_index=told.partition,
                    committed_offset=told.offset,
                    committed_leader_epoch=told.leader_epoch,
                    metadata=told.metadata,
                    error_code=told.error,
                )
                for told in parts
            ],
        )
        for name, parts in found.items()
    ]
    return _Group(group_id=asked.group_id, topics=topics, error_code=error)


def _fetch_offsets(
    node: BrokerNode, group: str, wanted: dict[str, list[int]] | None, call: RequestContext, *, stable: bool
) -> tuple[ErrorCode, dict[str, list[OffsetFetchResult]]]:
    """Return the results by topic; with `wanted` None, those of every partition that the group committed."""
    home = _group_coordinator_partition(node, OFFSET_FETCH_KEY, group, call, operation=AclOperation.DESCRIBE)
    if isinstance(home, ErrorCode):
        return home, {}
    if wanted is None:
        wanted = {}
        for place in node.groups.offsets_of(home.index, group):
            if node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE, AclResourceType.TOPIC, place.topic):
                wanted.setdefault(place.topic, []).append(place.partition)
    found = {
        name: [
            _fetch_offset(node, home, GroupTopicPartition(group, name, index), call, stable=stable) for index in indexes
        ]
        for name, indexes in wanted.items()
    }
    return ErrorCode.NONE, found


def _fetch_offset(
    node: BrokerNode, home: CoordinatorPartition, place: GroupTopicPartition, call: RequestContext, *, stable: bool
) -> OffsetFetchResult:
    if not node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE, AclResourceType.TOPIC, place.topic):
        return OffsetFetchResult(place.partition, -1, -1, "", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if stable and node.groups.has_pending_offset(home.index, place):
        return OffsetFetchResult(place.partition, -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
    known = node.groups.get(home.index, place)
    if known is None:
        return OffsetFetchResult(place.partition, -1, -1, "", ErrorCode.NONE)
    return OffsetFetchResult(place.partition, known.offset, known.leader_epoch, known.metadata, ErrorCode.NONE)


def expire_offsets(node: BrokerNode, moment: BrokerTime) -> None:
    """Expire offsets of groups without members, by the time the last member left or else of their own commit."""
    for index, place, committed in list(node.groups.all()):
        group = node.groups.group(index, place.group)
        if group is not None and group.members:
            continue
        since = committed.at_ms if group is None or group.empty_since_ms is None else group.empty_since_ms
        if moment.wall_ms - since >= node.limits.offsets_retention_ms:
            home = coordinator_partition_of(node, internal_topics.OFFSETS, place.group, moment.now)
            if not isinstance(home, ErrorCode) and not node.groups.has_pending_offset(index, place):
                _ = write(node, home, [encode_record(place, None)], moment.wall_ms)
