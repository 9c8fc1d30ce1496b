"""Periodic tasks of a node."""

from __future__ import annotations

from ..cluster.node import BrokerNode
from ..log.ports import BrokerTime
from .group_offsets import expire_offsets
from .transaction_markers import abort_timed_out, complete_decided_transactions


def upkeep(node: BrokerNode, moment: BrokerTime) -> None:
    """Expire producers, transactional ids and offsets, abort timed-out transactions, and end decided ones."""
    node.upkeep(moment)
    if moment.now >= node.next_transaction_check:
        node.next_transaction_check = moment.now + node.limits.transaction_check_interval_s
        abort_timed_out(node, moment)
        expire_offsets(node, moment)
    for group in node.groups.groups():
        if group.expire_members(moment.now, moment.wall_ms):
            node.changes += 1
    complete_decided_transactions(node, moment)


def next_deadline(node: BrokerNode, now: float) -> float:
    """Return when `upkeep` must run even if nothing else happens (seconds)."""
    ends = [node.next_deadline(), node.next_transaction_check]
    ends += [due for group in node.groups.groups() if (due := group.next_deadline()) is not None]
    due = node.pending_ends.next_deadline(now)
    return min(ends) if due is None else min(*ends, due)
