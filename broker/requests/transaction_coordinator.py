"""The transaction coordinator: producer ids and epochs, partitions and ends of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..cluster.node import BrokerNode
from ..log import internal_topics
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime
from ..transactions import states
from ..transactions.states import FencingAbort, Key, TransactionMetadata, TransactionOwner, TransitionResult
from ..transactions.table import encode_record
from .coordinator import CoordinatorPartition, coordinator_partition_of, write


class StoredTransaction(NamedTuple):
    """A state written to the log, possibly not replicated yet."""

    known: TransactionMetadata
    coordinator_partition: CoordinatorPartition
    end_offset: int


Result = StoredTransaction | ErrorCode


def is_replicated(node: BrokerNode, home: CoordinatorPartition, transactional_id: str) -> bool:
    """Return whether the last written state of a transactional id is on all in-sync replicas."""
    return home.partition.log.high_watermark >= node.transactions.end_of(transactional_id)


def find_transaction(
    node: BrokerNode, transactional_id: str, now: float
) -> tuple[CoordinatorPartition, TransactionMetadata] | ErrorCode:
    """Return the state of a transactional id, if this node coordinates it and the state is replicated."""
    home = coordinator_partition_of(node, internal_topics.TRANSACTIONS, transactional_id, now)
    if isinstance(home, ErrorCode):
        return home
    known = node.transactions.get(home.index, transactional_id)
    if known is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return (home, known) if is_replicated(node, home, transactional_id) else ErrorCode.CONCURRENT_TRANSACTIONS


def store(node: BrokerNode, home: CoordinatorPartition, known: TransactionMetadata, wall_ms: int) -> Result:
    """Write a state to the log; it takes effect once it is replicated."""
    end = write(node, home, [encode_record(known)], wall_ms)
    if end is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    node.transactions.note_written(known.transactional_id, end)
    return StoredTransaction(known, home, end)


def initialise(
    node: BrokerNode, transactional_id: str, timeout_ms: int, expected: TransactionOwner | None, moment: BrokerTime
) -> Result | FencingAbort:
    """Assign a transactional id its first or next epoch; `FencingAbort`: an open transaction is aborted first."""
    home = coordinator_partition_of(node, internal_topics.TRANSACTIONS, transactional_id, moment.now)
    if isinstance(home, ErrorCode):
        return home
    known = node.transactions.get(home.index, transactional_id)
    if known is None:
        producer_id = node.new_producer_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        known = states.new_transaction(transactional_id, producer_id, timeout_ms, moment.wall_ms)
    elif not is_replicated(node, home, transactional_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    new_id, remembers = node.new_producer_id, node.limits.is_kafka_4
    told = states.prepare_init_producer_id(known, expected, timeout_ms, new_id, moment.wall_ms, remembers=remembers)
    match told:
        case FencingAbort(aborting):
            found = store(node, home, aborting, moment.wall_ms)
            return found if isinstance(found, ErrorCode) else told
        case TransactionMetadata():
            return store(node, home, told, moment.wall_ms)
        case _:
            return told


def _apply_transition(
    node: BrokerNode, transactional_id: str, moment: BrokerTime, rule: Callable[[TransactionMetadata], TransitionResult]
) -> Result | TransactionMetadata:
    """Apply a transition to the state and store the result; return the state itself if nothing changes."""
    found = find_transaction(node, transactional_id, moment.now)
    if isinstance(found, ErrorCode):
        return found
    home, known = found
    told = rule(known)
    if isinstance(told, TransactionMetadata):
        return store(node, home, told, moment.wall_ms)
    return known if told is ErrorCode.NONE else told


def add_to_transaction(
    node: BrokerNode,
    transactional_id: str,
    who: TransactionOwner,
    partitions: frozenset[Key],
    version: int,
    moment: BrokerTime,
) -> Result | TransactionMetadata:
    """Add partitions to the producer's transaction; the first partition starts it."""
    return _apply_transition(
        node,
        transactional_id,
        moment,
        lambda known: states.prepare_add_partitions(known, who, partitions, version, moment.wall_ms),
    )


def decide_end(
    node: BrokerNode, transactional_id: str, who: TransactionOwner, *, commit: bool, version: int, moment: BrokerTime
) -> Result | TransactionMetadata:
    """Decide whether a transaction commits or aborts; markers are written later."""
    wall_ms = moment.wall_ms

    def rule(known: TransactionMetadata) -> TransitionResult:
        if version == 1:
            return states.prepare_end(known, who, commit=commit, now_ms=wall_ms)
        return states.prepare_end_with_epoch_bump(
            known, who, commit=commit, new_id=node.new_producer_id, now_ms=wall_ms
        )

    return _apply_transition(node, transactional_id, moment, rule)


def verify_in_transaction(
    node: BrokerNode, transactional_id: str, who: TransactionOwner, partition: Key, now: float
) -> ErrorCode:
    """Return NONE if a partition is in the producer's open transaction, else the error."""
    found = find_transaction(node, transactional_id, now)
    return found if isinstance(found, ErrorCode) else states.verify_partition(found[1], who, partition)
