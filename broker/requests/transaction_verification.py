"""Verifies the partitions of transactional Produce requests with the coordinator, before any append."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kafka.protocol.producer import ProduceRequest

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode
from ..cluster.responses import DelayedResponse, RequestContext
from ..log import internal_topics
from ..log.batches import TRANSACTIONAL_BIT, BatchHeader, read_header
from ..log.error_codes import AppendRejection, ErrorCode
from ..log.producer_state import TransactionalFlags
from ..transactions.states import Key, TransactionOwner
from .coordinator import WRITE_S
from .transaction_coordinator import StoredTransaction, add_to_transaction, is_replicated, verify_in_transaction

IMPLICIT_ADD_FROM: Final = 12
"""First Produce version that adds its partitions to the transaction (KIP-890)."""

ABORTABLE_ERROR_FROM: Final = 11
"""First Produce version with TRANSACTION_ABORTABLE."""

RETRIABLE_COORDINATOR_ERRORS: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Errors that producers get as NOT_ENOUGH_REPLICAS, after which they retry."""


class PendingVerification(NamedTuple):
    """A request not processed yet, because the coordinator's state of its partitions is not replicated."""


VerificationErrors = dict[Key, AppendRejection]
"""Rejections of partitions not in their producer's transaction, by topic and index; others may continue."""


def read_header_or_none(data: bytes) -> BatchHeader | None:
    """Return the header of an unchecked batch, or None if the batch is too short."""
    try:
        return read_header(data)
    except struct.error:
        return None


def is_transactional(data: bytes) -> bool:
    """Return whether a batch has the transactional bit."""
    head = read_header_or_none(data)
    return head is not None and bool(head.attributes & TRANSACTIONAL_BIT)


def transactional_flags_of(head: BatchHeader, version: int) -> TransactionalFlags:
    """Return the transactional flags of a batch for this Produce version."""
    transactional = bool(head.attributes & TRANSACTIONAL_BIT)
    return TransactionalFlags(transactional, starts_at_zero=transactional and version >= IMPLICIT_ADD_FROM)


def is_write_authorized(node: BrokerNode, request: ProduceRequest, call: RequestContext) -> bool:
    """Return whether the client may write with its transactional id; True without transactional batches."""
    entries = [part for entry in request.topic_data for part in entry.partition_data]
    if not any(is_transactional(bytes(part.records or b"")) for part in entries):
        return True
    name = request.transactional_id
    return name is not None and node.authorizer.is_allowed(
        call.client_id, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, name
    )


def verify(
    node: BrokerNode, request: ProduceRequest, parts: dict[Key, bytes], call: RequestContext
) -> VerificationErrors | DelayedResponse:
    """Ask the coordinator about the partitions led here whose logs have no open transaction of the producer."""
    refused: VerificationErrors = {}
    waiting: list[Key] = []
    for key, data in parts.items():
        head = read_header_or_none(data)
        topic = node.topic(key[0])
        partition = None if topic is None else node.partition(topic, key[1])
        if head is None or partition is None or isinstance(partition, ErrorCode):
            continue
        if not head.attributes & TRANSACTIONAL_BIT or head.producer_id < 0:
            continue
        producers = partition.log.producers
        # Brokers before 4.0 do not check the epoch at this point.
        epoch = head.producer_epoch if node.limits.is_kafka_4 else None
        if producers.has_open_transaction(head.producer_id, epoch):
            continue
        known_of = producers.get(head.producer_id)
        if node.limits.is_kafka_4 and known_of is not None and head.producer_epoch < known_of.epoch:
            refused[key] = AppendRejection(ErrorCode.INVALID_PRODUCER_EPOCH, f"current epoch {known_of.epoch}")
            continue
        producers.add_unverified(head.producer_id, head.producer_epoch, head.base_sequence)
        who = TransactionOwner(head.producer_id, head.producer_epoch)
        error = query_coordinator(
            node, str(request.transactional_id), who, key, call, adds=call.version >= IMPLICIT_ADD_FROM
        )
        if error is None:
            waiting.append(key)
        elif error is not ErrorCode.NONE:
            refused[key] = AppendRejection(
                _error_for_version(error, call.version), "the coordinator of the transaction says so"
            )
    deadline = call.arrived + WRITE_S
    if waiting and call.moment.now < deadline:
        return DelayedResponse(deadline, PendingVerification())
    late = AppendRejection(ErrorCode.NOT_ENOUGH_REPLICAS, "the coordinator's replicas are too slow")
    return refused | dict.fromkeys(waiting, late)


def query_coordinator(
    node: BrokerNode, transactional_id: str, who: TransactionOwner, key: Key, call: RequestContext, *, adds: bool
) -> ErrorCode | None:
    """Ask the coordinator, on any node, about a partition; None while its state is not replicated."""
    topic = node.topic(internal_topics.TRANSACTIONS)
    index = internal_topics.internal_partition_of(transactional_id)
    there = None if topic is None else node.reachable_nodes.leader(node, topic, index)
    if topic is None or there is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    known = there.transactions.get(index, transactional_id)
    if known is not None and known.owner == who and key in known.partitions:
        home = there.partition(topic, index)
        if not isinstance(home, ErrorCode) and home.log.high_watermark < there.transactions.end_of(transactional_id):
            return None
    if not adds:
        return verify_in_transaction(there, transactional_id, who, key, call.moment.now)
    found = add_to_transaction(there, transactional_id, who, frozenset({key}), 2, call.moment)
    match found:
        case StoredTransaction(_, at, _):
            return ErrorCode.NONE if is_replicated(there, at, transactional_id) else None
        case ErrorCode():
            return found
        case _:
            return ErrorCode.NONE


def _error_for_version(error: ErrorCode, version: int) -> ErrorCode:
    """Return the error code that a Produce version uses for a coordinator's error."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_ERROR_FROM:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version >= IMPLICIT_ADD_FROM:
        return error
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in RETRIABLE_COORDINATOR_ERRORS else error
