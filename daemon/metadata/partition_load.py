"""What waits for each partition, from the shards' LOAD and from what was not handed out to them: for the choice of partitions
(ADP-5, ADP-8, BIP-9)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ...producer.accumulator.partitioners import LedPartition
from ...wire.messages import PartitionLoad, ShardLoad
from ..leases.ownership import Leases
from ..ledger.partition_state import LedgerPartition
from ..sessions.routing import PartitionQueueStats

LOAD_MAX_AGE_S: Final = 3.0
"""LOAD comes once a second: one that is older says nothing of the present, though its shard may live."""


class _ReceivedLoad(NamedTuple):
    """The last LOAD of a shard, and when it was first seen."""

    load: ShardLoad
    at: float
    partitions: Mapping[int, PartitionLoad]
    unavailable_nodes: frozenset[int]
    """Nodes that could not be sent to for too long."""


class PartitionLoads:
    """Reads the leases; owns when each LOAD came."""

    def __init__(self, leases: Leases, *, batch_bytes: int, availability_timeout_ms: int) -> None:
        """`batch_bytes`: what waits outside of batches counts in units of it. `availability_timeout_ms` 0: no node is ever too
        late."""
        self._leases: Final = leases
        self._batch_bytes: Final = batch_bytes
        self._timeout_ms: Final = availability_timeout_ms
        self._received: dict[int, _ReceivedLoad] = {}
        self._fresh: dict[int, _ReceivedLoad] = {}

    def refresh(self, now: float) -> None:
        """Take what came since the last look."""
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
        """Of every partition with a leader of one topic. Where the shard that holds it said nothing of late, what the router
        knows itself counts."""
        found: list[PartitionQueueStats] = []
        # By the leader's node: a partition nobody has been granted yet stands behind the same connection.
        late = {node for heard in self._fresh.values() for node in heard.unavailable_nodes}
        for leader in leaders:
            queue = self._leases.queued_bytes(states[leader.partition].number)
            heard = self._fresh.get(queue.shard_id)
            part = None if heard is None else heard.partitions.get(states[leader.partition].number)
            # What was handed out is counted by the router too, and up to date: the shard knows better how many batches it makes.
            batches = max(part.queued_batches if part is not None else 0, self._batches(queue.handed_out_bytes))
            found.append(
                PartitionQueueStats(
                    leader.partition,
                    batches + self._batches(queue.waiting_bytes),
                    node_unavailable=leader.node in late,
                    full=heard is not None and (part is None or not part.open_batch_has_room),
                )
            )
        return found

    def _batches(self, nbytes: int) -> int:
        return -(-nbytes // self._batch_bytes)
