"""Replication from a leader to a follower."""

from __future__ import annotations

from typing import Final

from ..cluster.node import BrokerNode, BrokerPartition
from ..log.partition_log import PartitionLog
from ..log.ports import BrokerTime

EVERYTHING: Final = 1 << 62


def replicate(
    node: BrokerNode, mine: BrokerPartition, index: int, leader: BrokerNode, theirs: BrokerPartition, moment: BrokerTime
) -> None:
    """Make a follower's log equal to its leader's: truncate records that the leader lacks, then copy the rest."""
    if mine.needs_truncation:
        _truncate_to_leader(mine.log, theirs.log)
        mine.needs_truncation = False
        node.changes += 1
    start = theirs.log.start_offset
    if mine.log.end_offset < start:
        mine.log.truncate_fully_and_start_at(start)
    for data in theirs.log.read(mine.log.end_offset, EVERYTHING, below=EVERYTHING):
        node.write(mine, index, data)
    mine.log.delete_before(start)
    level = mine.log.end_offset
    if theirs.replica_end_offsets.get(node.node_id) != level:
        theirs.replica_end_offsets[node.node_id] = level
        theirs.advance_high_watermark()
        leader.changes += 1
    theirs.caught_up_at[node.node_id] = moment.now
    seen = min(theirs.log.high_watermark, level)
    if seen > mine.log.high_watermark:
        mine.log.high_watermark = seen
        node.changes += 1


def _truncate_to_leader(mine: PartitionLog, theirs: PartitionLog) -> None:
    """Truncate a follower's log to where it agrees with its leader's, epoch by epoch."""
    while True:
        last = mine.last_epoch
        known = theirs.end_of_epoch(last)
        if known.end_offset < 0 or known.epoch > last:
            # The leader has no epoch this old: only records below the high watermark may stay.
            mine.truncate(min(mine.high_watermark, theirs.end_offset))
            return
        if known.epoch == last:
            mine.truncate(min(known.end_offset, mine.end_offset))
            return
        own = mine.end_of_epoch(known.epoch)
        mine.truncate(min(known.end_offset, own.end_offset if own.end_offset >= 0 else known.end_offset))
        if mine.last_epoch >= last:
            return
