"""Background work of transaction coordinators: write markers, abort timed-out transactions, compact their logs."""

from __future__ import annotations

from ..cluster.faults import MarkerFault
from ..cluster.node import BrokerNode
from ..log import internal_topics
from ..log.batch_writer import BatchProducer, EndTxnMarker, marker_batch
from ..log.error_codes import ErrorCode
from ..log.ports import BrokerTime
from ..transactions import states
from ..transactions.pending_ends import PendingEnd, WrittenMarker
from ..transactions.states import COMPLETE, PREPARED, Key, TransactionMetadata, TransactionState
from ..transactions.table import tombstone
from .coordinator import CoordinatorPartition, append, coordinator_partition_of, write
from .transaction_coordinator import is_replicated, store


def complete_decided_transactions(node: BrokerNode, moment: BrokerTime) -> None:
    """Continue ending every decided transaction that this node coordinates."""
    prepared = [(index, one) for index, one in node.transactions.all() if one.state in PREPARED]
    node.pending_ends.retain({one.transactional_id for _, one in prepared})
    for _, known in prepared:
        home = coordinator_partition_of(node, internal_topics.TRANSACTIONS, known.transactional_id, moment.now)
        if not isinstance(home, ErrorCode) and is_replicated(node, home, known.transactional_id):
            _write_markers(node, home, known, moment)


def _write_markers(
    node: BrokerNode, home: CoordinatorPartition, known: TransactionMetadata, moment: BrokerTime
) -> None:
    ending = node.pending_ends.of(known, moment.now + node.limits.marker_delay_ms / 1000)
    if moment.now < ending.due:
        return
    for key in sorted(ending.unwritten):
        _write_marker(node, home, known, key, ending, moment)
    for key, sent in list(ending.unreplicated.items()):
        _check_replicated(node, key, sent, ending)
    if not ending.unwritten and not ending.unreplicated:
        _ = store(node, home, states.prepare_complete(known, moment.wall_ms), moment.wall_ms)


def _write_marker(
    node: BrokerNode,
    home: CoordinatorPartition,
    known: TransactionMetadata,
    key: Key,
    ending: PendingEnd,
    moment: BrokerTime,
) -> None:
    topic = node.topic(key[0])
    if topic is None:
        ending.unwritten.discard(key)  # the topic was deleted: no marker is needed
        return
    leader = node.reachable_nodes.leader(node, topic, key[1])
    partition = None if leader is None else leader.partition(topic, key[1])
    if leader is None or partition is None or isinstance(partition, ErrorCode):
        return
    match node.marker_rules.of(known.transactional_id, *key):
        case MarkerFault.HOLD:
            return
        case MarkerFault.LOSE:
            ending.unwritten.discard(key)
            return
        case None:
            pass
    marker = EndTxnMarker(known.state is TransactionState.PREPARE_COMMIT, home.epoch)
    data = marker_batch(marker, moment.wall_ms, BatchProducer(known.producer_id, known.epoch))
    end = append(leader, partition, key[1], data, moment.wall_ms)
    if end is not None:
        ending.unwritten.discard(key)
        ending.unreplicated[key] = WrittenMarker(partition.placement.epoch, end)


def _check_replicated(node: BrokerNode, key: Key, sent: WrittenMarker, ending: PendingEnd) -> None:
    """Check whether a marker is replicated; if its leader changed, schedule it to be written again."""
    topic = node.topic(key[0])
    leader = None if topic is None else node.reachable_nodes.leader(node, topic, key[1])
    if topic is None:
        del ending.unreplicated[key]
        return
    partition = None if leader is None else leader.partition(topic, key[1])
    if partition is None or isinstance(partition, ErrorCode):
        return
    if partition.placement.epoch != sent.epoch:
        del ending.unreplicated[key]
        ending.unwritten.add(key)
    elif partition.log.high_watermark >= sent.end_offset:
        del ending.unreplicated[key]


def abort_timed_out(node: BrokerNode, moment: BrokerTime) -> None:
    """Abort transactions open longer than their timeout, and expire transactional ids unused for too long."""
    for index, known in list(node.transactions.all()):
        home = coordinator_partition_of(node, internal_topics.TRANSACTIONS, known.transactional_id, moment.now)
        if isinstance(home, ErrorCode) or not is_replicated(node, home, known.transactional_id):
            continue
        if known.state is TransactionState.ONGOING and moment.wall_ms - known.started_ms > known.timeout_ms:
            aborting = states.prepare_fence(
                known, node.new_producer_id, moment.wall_ms, remembers=node.limits.is_kafka_4
            )
            _ = aborting is not None and store(node, home, aborting, moment.wall_ms)
        unused = known.state is TransactionState.EMPTY or known.state in COMPLETE
        if unused and moment.wall_ms - known.updated_ms >= node.limits.transactional_id_expiration_ms:
            _ = write(node, home, [tombstone(known.transactional_id)], moment.wall_ms)
        _compact(node, home, index, moment)


def _compact(node: BrokerNode, home: CoordinatorPartition, index: int, moment: BrokerTime) -> None:
    """Rewrite the current state if the log has many outdated records, and delete everything before it."""
    log = home.partition.log
    if node.transactions.needs_compaction(index) and log.high_watermark == log.end_offset:
        start = log.end_offset
        if write(node, home, node.transactions.compacted(index), moment.wall_ms) is not None:
            node.delete_before(home.partition, index, start)
