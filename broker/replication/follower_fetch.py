"""How a follower's log becomes that of its leader."""

from __future__ import annotations

from typing import Final

from ..cluster.node import Node, Partition
from ..log.partition_log import PartitionLog
from ..log.ports import Moment

EVERYTHING: Final = 1 << 62


def copy(node: Node, mine: Partition, index: int, leader: Node, theirs: Partition, moment: Moment) -> None:
    """Bring a follower level with its leader: cut off what the leader does not have, then take what it has."""
    if mine.diverged:
        _converge(mine.log, theirs.log)
        mine.diverged = False
        node.changes += 1
    start = theirs.log.start_offset
    if mine.log.end_offset < start:
        mine.log.restart_at(start)
    for data in theirs.log.read(mine.log.end_offset, EVERYTHING, below=EVERYTHING):
        node.write(mine, index, data)
    mine.log.delete_before(start)
    level = mine.log.end_offset
    if theirs.ends.get(node.node_id) != level:
        theirs.ends[node.node_id] = level
        theirs.advance()
        leader.changes += 1
    theirs.caught_up[node.node_id] = moment.now
    seen = min(theirs.log.high_watermark, level)
    if seen > mine.log.high_watermark:
        mine.log.high_watermark = seen
        node.changes += 1


def _converge(mine: PartitionLog, theirs: PartitionLog) -> None:
    """Truncate a follower's log to where it agrees with its leader's, epoch by epoch."""
    while True:
        last = mine.last_epoch
        known = theirs.end_of_epoch(last)
        if known.end_offset < 0 or known.epoch > last:
            # The leader knows nothing as old: only what both hold for committed may stay.
            mine.truncate(min(mine.high_watermark, theirs.end_offset))
            return
        if known.epoch == last:
            mine.truncate(min(known.end_offset, mine.end_offset))
            return
        own = mine.end_of_epoch(known.epoch)
        mine.truncate(min(known.end_offset, own.end_offset if own.end_offset >= 0 else known.end_offset))
        if mine.last_epoch >= last:
            return
