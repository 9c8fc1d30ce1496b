"""The coordinator of transactions: transactional ids, what is in their transactions, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..cluster.node import Node
from ..log import internal_topics
from ..log.error_codes import ErrorCode
from ..log.ports import Moment
from ..transactions import states
from ..transactions.states import Fenced, Identity, Key, Transaction, Verdict
from ..transactions.table import encoded
from .coordinator import Home, home_of, write


class Stored(NamedTuple):
    """A state that was written down, on its way to the replicas."""

    known: Transaction
    home: Home
    end_offset: int


Result = Stored | ErrorCode


def settled(node: Node, home: Home, transactional_id: str) -> bool:
    """Whether the last state that was written of a transactional id is on all in-sync replicas."""
    return home.partition.log.high_watermark >= node.transactions.end_of(transactional_id)


def find(node: Node, transactional_id: str, now: float) -> tuple[Home, Transaction] | ErrorCode:
    """What is known of a transactional id, if this node is its coordinator and nothing is on its way."""
    home = home_of(node, internal_topics.TRANSACTIONS, transactional_id, now)
    if isinstance(home, ErrorCode):
        return home
    known = node.transactions.get(home.index, transactional_id)
    if known is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return (home, known) if settled(node, home, transactional_id) else ErrorCode.CONCURRENT_TRANSACTIONS


def store(node: Node, home: Home, known: Transaction, wall_ms: int) -> Result:
    """Write a state down, so that it counts as soon as the replicas have it."""
    end = write(node, home, [encoded(known)], wall_ms)
    if end is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    node.transactions.written(known.transactional_id, end)
    return Stored(known, home, end)


def initialise(
    node: Node, transactional_id: str, timeout_ms: int, expected: Identity | None, moment: Moment
) -> Result | Fenced:
    """Give a transactional id its next epoch, or its first; `Fenced` says that an open transaction is being aborted first."""
    home = home_of(node, internal_topics.TRANSACTIONS, transactional_id, moment.now)
    if isinstance(home, ErrorCode):
        return home
    known = node.transactions.get(home.index, transactional_id)
    if known is None:
        producer_id = node.new_producer_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        known = states.created(transactional_id, producer_id, timeout_ms, moment.wall_ms)
    elif not settled(node, home, transactional_id):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    new_id, remembers = node.new_producer_id, node.limits.is_new
    told = states.initialised(known, expected, timeout_ms, new_id, moment.wall_ms, remembers=remembers)
    match told:
        case Fenced(aborting):
            found = store(node, home, aborting, moment.wall_ms)
            return found if isinstance(found, ErrorCode) else told
        case Transaction():
            return store(node, home, told, moment.wall_ms)
        case _:
            return told


def _change(
    node: Node, transactional_id: str, moment: Moment, rule: Callable[[Transaction], Verdict]
) -> Result | Transaction:
    """Change what is known by a rule; without an error and a change, what is known stays."""
    found = find(node, transactional_id, moment.now)
    if isinstance(found, ErrorCode):
        return found
    home, known = found
    told = rule(known)
    if isinstance(told, Transaction):
        return store(node, home, told, moment.wall_ms)
    return known if told is ErrorCode.NONE else told


def add(
    node: Node, transactional_id: str, who: Identity, partitions: frozenset[Key], version: int, moment: Moment
) -> Result | Transaction:
    """Add partitions to the producer's transaction, which begins with the first of them."""
    return _change(
        node,
        transactional_id,
        moment,
        lambda known: states.added(known, who, partitions, version, moment.wall_ms),
    )


def end(
    node: Node, transactional_id: str, who: Identity, *, commit: bool, version: int, moment: Moment
) -> Result | Transaction:
    """Decide how a transaction ends; its markers follow."""
    wall_ms = moment.wall_ms

    def rule(known: Transaction) -> Verdict:
        if version == 1:
            return states.ended(known, who, commit=commit, now_ms=wall_ms)
        return states.ended_with_bump(known, who, commit=commit, new_id=node.new_producer_id, now_ms=wall_ms)

    return _change(node, transactional_id, moment, rule)


def holds(node: Node, transactional_id: str, who: Identity, partition: Key, now: float) -> ErrorCode:
    """Whether a partition is in the producer's open transaction."""
    found = find(node, transactional_id, now)
    return found if isinstance(found, ErrorCode) else states.holds(found[1], who, partition)
