"""Queue sizes per partition for the partitioners, from the shards' LOAD and from slices not handed out (ADP-5, ADP-8,
BIP-9)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ...producer.accumulator.partitioners import LedPartition
from ...wire.messages import PartitionLoad, ShardLoad
from ..leases.ownership import Leases
from ..ledger.partition_state import LedgerPartition
from ..sessions.routing import PartitionQueueStats

LOAD_MAX_AGE_S: Final = 3.0
"""LOAD arrives once a second. An older one is outdated, even if its shard is alive."""


class _ReceivedLoad(NamedTuple):
    """The last LOAD of a shard, and when it was first seen."""

    load: ShardLoad
    at: float
    partitions: Mapping[int, PartitionLoad]
    unavailable_nodes: frozenset[int]
    """Nodes that were unavailable for too long."""


class PartitionLoads:
    """Computes queue sizes from the leases; owns the arrival time of each LOAD."""

    def __init__(self, leases: Leases, *, batch_bytes: int, availability_timeout_ms: int) -> None:
        """`batch_bytes`: bytes outside of batches count in units of it. `availability_timeout_ms` 0: no node ever
        counts as unavailable."""
        self._leases: Final = leases
        self._batch_bytes: Final = batch_bytes
        self._timeout_ms: Final = availability_timeout_ms
        self._received: dict[int, _ReceivedLoad] = {}
        self._fresh: dict[int, _ReceivedLoad] = {}

    def refresh(self, now: float) -> None:
        """Read the LOADs that arrived since the last call."""
        told = self._leases.loads
        for seat in self._received.keys() - told.keys():
            del self._received[seat]
        for seat, load in told.items():
            known = self._received.get(seat)
            if known is None or known.load is not load:
                self._received[seat] = _ReceivedLoad(
                    load, now, {part.partition: part for part in load.partitions}, frozenset(self._late(load))
                )
        self._fresh = {seat: heard for seat, heard in self._received.items() if now <= heard.at + LOAD_MAX_AGE_S}

    def _late(self, load: ShardLoad) -> Iterable[int]:
        if self._timeout_ms:
            for node in load.nodes:
                if node.send_blocked_ms > self._timeout_ms:
                    yield node.node

    def queued_batches(
        self, leaders: Iterable[LedPartition], states: list[LedgerPartition]
    ) -> list[PartitionQueueStats]:
        """The queue of every partition of one topic that has a leader. Without a recent LOAD from the partition's
        shard, the router's own counts are used."""
        found: list[PartitionQueueStats] = []
        # By the leader's node: a partition that is not granted yet will use the same connection.
        late = {node for heard in self._fresh.values() for node in heard.unavailable_nodes}
        for leader in leaders:
            number = states[leader.partition].number
            lease = self._leases.find(number)
            heard = None if lease is None else self._fresh.get(lease.shard_id)
            part = None if heard is None else heard.partitions.get(number)
            handed_out, waiting = (0, 0) if lease is None else (lease.backlog.handed_out_bytes, lease.waiting_bytes)
            # The router's count of handed-out bytes is current; the shard knows better how many batches they become.
            batches = max(part.queued_batches if part is not None else 0, self._batches(handed_out))
            found.append(
                PartitionQueueStats(
                    leader.partition,
                    batches + self._batches(waiting),
                    node_unavailable=leader.node in late,
                    full=heard is not None and (part is None or not part.open_batch_has_room),
                )
            )
        return found

    def _batches(self, nbytes: int) -> int:
        return -(-nbytes // self._batch_bytes)
