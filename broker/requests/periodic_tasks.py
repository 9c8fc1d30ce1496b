"""What a node does by itself as time passes."""

from __future__ import annotations

from ..cluster.node import Node
from ..log.ports import Moment
from .group_offsets import expire
from .transaction_markers import abort_old, coordinate


def upkeep(node: Node, moment: Moment) -> None:
    """Forget old producers, transactional ids and offsets, abort old transactions, and end those that are decided."""
    node.upkeep(moment)
    if moment.now >= node.next_transaction_check:
        node.next_transaction_check = moment.now + node.limits.transaction_check_interval_s
        abort_old(node, moment)
        expire(node, moment)
    for group in node.groups.groups():
        if group.drop_silent(moment.now, moment.wall_ms):
            node.changes += 1
    coordinate(node, moment)


def next_deadline(node: Node, now: float) -> float:
    """When `upkeep` has something to do though nothing happened (seconds)."""
    ends = [node.next_deadline(), node.next_transaction_check]
    ends += [due for group in node.groups.groups() if (due := group.next_deadline()) is not None]
    due = node.endings.next_due(now)
    return min(ends) if due is None else min(*ends, due)
