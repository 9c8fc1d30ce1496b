"""What coordinators of transactions do by themselves: end transactions in all their partitions, and abort those that are open too long."""

from __future__ import annotations

from ..cluster.faults import Marking
from ..cluster.node import Node
from ..log import internal_topics
from ..log.batch_writer import Marker, Writer, marker_batch
from ..log.error_codes import ErrorCode
from ..log.ports import Moment
from ..transactions import states
from ..transactions.pending_ends import Ending, Sent
from ..transactions.states import COMPLETE, PREPARED, Key, State, Transaction
from ..transactions.table import removed
from .coordinator import Home, append, home_of, write
from .transaction_coordinator import settled, store


def coordinate(node: Node, moment: Moment) -> None:
    """Go on with all ends of transactions that this node coordinates."""
    prepared = [(index, one) for index, one in node.transactions.all() if one.state in PREPARED]
    node.endings.keep({one.transactional_id for _, one in prepared})
    for _, known in prepared:
        home = home_of(node, internal_topics.TRANSACTIONS, known.transactional_id, moment.now)
        if not isinstance(home, ErrorCode) and settled(node, home, known.transactional_id):
            _go_on(node, home, known, moment)


def _go_on(node: Node, home: Home, known: Transaction, moment: Moment) -> None:
    ending = node.endings.of(known, moment.now + node.limits.marker_delay_ms / 1000)
    if moment.now < ending.due:
        return
    for key in sorted(ending.left):
        _mark(node, home, known, key, ending, moment)
    for key, sent in list(ending.written.items()):
        _look(node, key, sent, ending)
    if not ending.left and not ending.written:
        _ = store(node, home, states.completed(known, moment.wall_ms), moment.wall_ms)


def _mark(node: Node, home: Home, known: Transaction, key: Key, ending: Ending, moment: Moment) -> None:
    topic = node.topic(key[0])
    if topic is None:
        ending.left.discard(key)  # deleted since: nobody waits for the end
        return
    leader = node.neighbours.leader(node, topic, key[1])
    partition = None if leader is None else leader.partition(topic, key[1])
    if leader is None or partition is None or isinstance(partition, ErrorCode):
        return
    match node.marker_rules.of(known.transactional_id, *key):
        case Marking.HOLD:
            return
        case Marking.LOSE:
            ending.left.discard(key)
            return
        case None:
            pass
    marker = Marker(known.state is State.PREPARE_COMMIT, home.epoch)
    data = marker_batch(marker, moment.wall_ms, Writer(known.producer_id, known.epoch))
    end = append(leader, partition, key[1], data, moment.wall_ms)
    if end is not None:
        ending.left.discard(key)
        ending.written[key] = Sent(partition.placement.epoch, end)


def _look(node: Node, key: Key, sent: Sent, ending: Ending) -> None:
    """See whether the replicas have a marker, or its leader was lost: then it is written again."""
    topic = node.topic(key[0])
    leader = None if topic is None else node.neighbours.leader(node, topic, key[1])
    if topic is None:
        del ending.written[key]
        return
    partition = None if leader is None else leader.partition(topic, key[1])
    if partition is None or isinstance(partition, ErrorCode):
        return
    if partition.placement.epoch != sent.epoch:
        del ending.written[key]
        ending.left.add(key)
    elif partition.log.high_watermark >= sent.end_offset:
        del ending.written[key]


def abort_old(node: Node, moment: Moment) -> None:
    """Abort transactions that are open for longer than their producers said, and forget ids that nobody used for long."""
    for index, known in list(node.transactions.all()):
        home = home_of(node, internal_topics.TRANSACTIONS, known.transactional_id, moment.now)
        if isinstance(home, ErrorCode) or not settled(node, home, known.transactional_id):
            continue
        if known.state is State.ONGOING and moment.wall_ms - known.started_ms > known.timeout_ms:
            aborting = states.fenced(known, node.new_producer_id, moment.wall_ms, remembers=node.limits.is_new)
            _ = aborting is not None and store(node, home, aborting, moment.wall_ms)
        unused = known.state is State.EMPTY or known.state in COMPLETE
        if unused and moment.wall_ms - known.updated_ms >= node.limits.transactional_id_expiration_ms:
            _ = write(node, home, [removed(known.transactional_id)], moment.wall_ms)
        _shorten(node, home, index, moment)


def _shorten(node: Node, home: Home, index: int, moment: Moment) -> None:
    """Write a log anew that says most things more than once, and drop what is before."""
    log = home.partition.log
    if node.transactions.is_long(index) and log.high_watermark == log.end_offset:
        start = log.end_offset
        if write(node, home, node.transactions.shortened(index), moment.wall_ms) is not None:
            node.delete_before(home.partition, index, start)
