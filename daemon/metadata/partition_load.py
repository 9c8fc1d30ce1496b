"""What waits for each partition, from the shards' LOAD and from what was not handed out to them: for the choice of partitions
(ADP-5, ADP-8, BIP-9)."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ...producer.accumulator.partitioners import Leader
from ...wire.messages import Load, PartitionLoad
from ..leases.ownership import Leases
from ..ledger.partition_state import PartitionState
from ..sessions.routing import Waiting

FRESH_S: Final = 3.0
"""LOAD comes once a second: one that is older says nothing of the present, though its shard may live."""


class _Heard(NamedTuple):
    """The last LOAD of a shard, and when it was first seen."""

    load: Load
    at: float
    partitions: Mapping[int, PartitionLoad]
    late: frozenset[int]
    """Nodes that could not be sent to for too long."""


class Loads:
    """Reads the leases; owns when each LOAD came."""

    def __init__(self, leases: Leases, *, batch_bytes: int, availability_timeout_ms: int) -> None:
        """`batch_bytes`: what waits outside of batches counts in units of it. `availability_timeout_ms` 0: no node is ever too
        late."""
        self._leases: Final = leases
        self._batch_bytes: Final = batch_bytes
        self._timeout_ms: Final = availability_timeout_ms
        self._heard: dict[int, _Heard] = {}
        self._fresh: dict[int, _Heard] = {}

    def look(self, now: float) -> None:
        """Take what came since the last look."""
        told = self._leases.loads
        for seat in self._heard.keys() - told.keys():
            del self._heard[seat]
        for seat, load in told.items():
            known = self._heard.get(seat)
            if known is None or known.load is not load:
                self._heard[seat] = _Heard(
                    load, now, {part.partition: part for part in load.partitions}, frozenset(self._late(load))
                )
        self._fresh = {seat: heard for seat, heard in self._heard.items() if now <= heard.at + FRESH_S}

    def _late(self, load: Load) -> Iterable[int]:
        if self._timeout_ms:
            for node in load.nodes:
                if node.wanting_ms > self._timeout_ms:
                    yield node.node

    def waiting(self, leaders: Iterable[Leader], states: list[PartitionState]) -> list[Waiting]:
        """Of every partition with a leader of one topic. Where the shard that holds it said nothing of late, what the router
        knows itself counts."""
        found: list[Waiting] = []
        # By the leader's node: a partition nobody has been granted yet stands behind the same connection.
        late = {node for heard in self._fresh.values() for node in heard.late}
        for leader in leaders:
            queue = self._leases.queue(states[leader.partition].number)
            heard = self._fresh.get(queue.seat)
            part = None if heard is None else heard.partitions.get(states[leader.partition].number)
            # What was handed out is counted by the router too, and up to date: the shard knows better how many batches it makes.
            batches = max(part.queued_batches if part is not None else 0, self._batches(queue.handed_bytes))
            found.append(
                Waiting(
                    leader.partition,
                    batches + self._batches(queue.waiting_bytes),
                    late=leader.node in late,
                    full=heard is not None and (part is None or not part.open_batch_has_room),
                )
            )
        return found

    def _batches(self, nbytes: int) -> int:
        return -(-nbytes // self._batch_bytes)
